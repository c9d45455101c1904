//! The table of functions: each reads its arguments, and has the machine of this thread do the rest.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::state::{self, Answer, State};
use super::with;
use crate::cuda::driver::number::*;
use crate::cuda::driver::{Context, Device, Event, Function, Functions, Module, Status, Stream};

/// The functions of the simulated driver.
pub const TABLE: Functions = Functions {
    driver_get_version,
    get_error_name,
    get_error_string,
    pointer_get_attribute,
    device_get,
    device_get_attribute,
    device_primary_ctx_retain,
    device_primary_ctx_release,
    ctx_push_current,
    ctx_pop_current,
    ctx_get_stream_priority_range,
    thread_exchange_stream_capture_mode,
    stream_create_with_priority,
    stream_destroy,
    stream_synchronize,
    event_create,
    event_destroy,
    event_record,
    event_synchronize,
    mem_host_alloc,
    mem_free_host,
    memcpy_async,
    module_load_data,
    module_unload,
    module_get_function,
    launch_kernel,
};

/// Calls a function; `store` is given what it returns.
fn call<T>(name: &'static str, action: impl FnOnce(&mut State) -> Answer<T>, store: impl FnOnce(T)) -> Status {
    // A thread without a machine is one of a process that has not initialised the driver.
    let answer = with(|state| state.enter(name).and_then(|()| action(state)));
    match answer.unwrap_or(Err(state::ERROR_NOT_INITIALIZED)) {
        Ok(value) => {
            store(value);
            SUCCESS
        }
        Err(status) => status,
    }
}

/// A function without a result.
fn act(name: &'static str, action: impl FnOnce(&mut State) -> Answer<()>) -> Status {
    call(name, action, |()| ())
}

/// Stores a handle where the caller wants it.
fn handle(into: *mut *mut c_void) -> impl FnOnce(usize) {
    // SAFETY: the library passes a variable.
    move |value| unsafe { *into = std::ptr::without_provenance_mut(value) }
}

/// Stores a number where the caller wants it.
fn store<T>(into: *mut T) -> impl FnOnce(T) {
    // SAFETY: the library passes a variable.
    move |value| unsafe { *into = value }
}

unsafe extern "C" fn driver_get_version(version: *mut c_int) -> Status {
    with(|state| state.version).map_or(state::ERROR_NOT_INITIALIZED, |own| {
        store(version)(own);
        SUCCESS
    })
}

unsafe extern "C" fn get_error_name(error: Status, name: *mut *const c_char) -> Status {
    let own = match error {
        ERROR_INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        ERROR_OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        state::ERROR_NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        state::ERROR_INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        state::ERROR_UNSUPPORTED_PTX_VERSION => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        state::ERROR_ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        state::ERROR_LAUNCH_FAILED => c"CUDA_ERROR_LAUNCH_FAILED",
        _ => return ERROR_INVALID_VALUE,
    };
    store(name)(own.as_ptr());
    SUCCESS
}

unsafe extern "C" fn get_error_string(error: Status, text: *mut *const c_char) -> Status {
    if error != ERROR_OUT_OF_MEMORY {
        return ERROR_INVALID_VALUE;
    }
    store(text)(c"out of memory".as_ptr());
    SUCCESS
}

unsafe extern "C" fn pointer_get_attribute(data: *mut c_void, attribute: c_int, pointer: u64) -> Status {
    call(
        "cuPointerGetAttribute",
        |state| state.attribute(attribute, pointer),
        |value| match attribute {
            POINTER_ATTRIBUTE_CONTEXT => handle(data.cast())(value),
            _ => store(data.cast())(value as c_uint),
        },
    )
}

unsafe extern "C" fn device_get(device: *mut Device, ordinal: c_int) -> Status {
    call("cuDeviceGet", |state| state.device(ordinal), store(device))
}

unsafe extern "C" fn device_get_attribute(value: *mut c_int, attribute: c_int, device: Device) -> Status {
    call("cuDeviceGetAttribute", |state| state.device_attribute(attribute, device), store(value))
}

unsafe extern "C" fn device_primary_ctx_retain(context: *mut Context, device: Device) -> Status {
    call("cuDevicePrimaryCtxRetain", |state| state.retain(device), handle(context))
}

unsafe extern "C" fn device_primary_ctx_release(device: Device) -> Status {
    act("cuDevicePrimaryCtxRelease_v2", |state| state.release(device))
}

unsafe extern "C" fn ctx_push_current(context: Context) -> Status {
    act("cuCtxPushCurrent_v2", |state| state.push(context.addr()))
}

unsafe extern "C" fn ctx_pop_current(context: *mut Context) -> Status {
    call("cuCtxPopCurrent_v2", State::pop, handle(context))
}

unsafe extern "C" fn ctx_get_stream_priority_range(lowest: *mut c_int, highest: *mut c_int) -> Status {
    call("cuCtxGetStreamPriorityRange", State::priorities, |(low, high)| {
        store(lowest)(low);
        store(highest)(high);
    })
}

unsafe extern "C" fn thread_exchange_stream_capture_mode(mode: *mut c_int) -> Status {
    // SAFETY: the library passes a variable.
    let wanted = unsafe { *mode };
    call("cuThreadExchangeStreamCaptureMode", |state| state.exchange_mode(wanted), store(mode))
}

unsafe extern "C" fn stream_create_with_priority(stream: *mut Stream, flags: c_uint, priority: c_int) -> Status {
    call("cuStreamCreateWithPriority", |state| state.create_stream(flags, priority), handle(stream))
}

unsafe extern "C" fn stream_destroy(stream: Stream) -> Status {
    act("cuStreamDestroy_v2", |state| state.destroy_stream(stream.addr()))
}

unsafe extern "C" fn stream_synchronize(stream: Stream) -> Status {
    act("cuStreamSynchronize", |state| state.synchronize_stream(stream.addr()))
}

unsafe extern "C" fn event_create(event: *mut Event, _flags: c_uint) -> Status {
    call("cuEventCreate", State::create_event, handle(event))
}

unsafe extern "C" fn event_destroy(event: Event) -> Status {
    act("cuEventDestroy_v2", |state| state.destroy_event(event.addr()))
}

unsafe extern "C" fn event_record(event: Event, stream: Stream) -> Status {
    act("cuEventRecord", |state| state.record_event(event.addr(), stream.addr()))
}

unsafe extern "C" fn event_synchronize(event: Event) -> Status {
    act("cuEventSynchronize", |state| state.synchronize_event(event.addr()))
}

unsafe extern "C" fn mem_host_alloc(pointer: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Status {
    let store = |address: u64| {
        // SAFETY: the library passes a variable.
        unsafe { *pointer = std::ptr::with_exposed_provenance_mut(address as usize) }
    };
    call("cuMemHostAlloc", |state| state.allocate_pinned(bytes), store)
}

unsafe extern "C" fn mem_free_host(pointer: *mut c_void) -> Status {
    act("cuMemFreeHost", |state| state.free_pinned(pointer.addr() as u64))
}

unsafe extern "C" fn memcpy_async(into: u64, from: u64, bytes: usize, stream: Stream) -> Status {
    act("cuMemcpyAsync", |state| state.copy(into, from, bytes, stream.addr()))
}

unsafe extern "C" fn module_load_data(module: *mut Module, image: *const c_void) -> Status {
    // SAFETY: the library passes a text that ends with zero.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_str().expect("PTX is ASCII");
    call("cuModuleLoadData", |state| state.load_module(text), handle(module))
}

unsafe extern "C" fn module_unload(module: Module) -> Status {
    act("cuModuleUnload", |state| state.unload_module(module.addr()))
}

unsafe extern "C" fn module_get_function(function: *mut Function, module: Module, name: *const c_char) -> Status {
    // SAFETY: the library passes a text that ends with zero.
    let name = unsafe { CStr::from_ptr(name) }.to_str().expect("a name is ASCII");
    call("cuModuleGetFunction", |state| state.function(module.addr(), name), handle(function))
}

unsafe extern "C" fn launch_kernel(
    function: Function,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    threads_x: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared_bytes: c_uint,
    stream: Stream,
    parameters: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Status {
    let parameter = |index: usize, bytes: usize| {
        // SAFETY: the library passes a pointer to each of the kernel's parameters, which have these bytes.
        unsafe { std::slice::from_raw_parts((*parameters.add(index)).cast::<u8>(), bytes) }.to_vec()
    };
    let geometry = [x, y, z, threads_x, threads_y, threads_z];
    act("cuLaunchKernel", |state| state.launch(function.addr(), geometry, shared_bytes, stream.addr(), parameter))
}
