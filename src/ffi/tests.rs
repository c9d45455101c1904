//! What C tests cannot reach: panics, layouts, and the helpers one by one.

use std::ffi::{CStr, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::enumeration::from_number;
use super::guard::guard;
use super::handle::{self, Handle};
use super::options::{self, Options};
use super::pointer::{self, Malloced, Out};
use super::*;
use crate::error::{Error, ErrorKind};
use crate::types::{DataType, ReduceOp};

fn message() -> String {
    // SAFETY: the string is valid until the next call fails on this thread.
    unsafe { CStr::from_ptr(gloo_rs_last_error_message()) }.to_str().unwrap().to_owned()
}

#[test]
fn the_version_is_the_package_s() {
    let version = format!("{GLOO_RS_VERSION_MAJOR}.{GLOO_RS_VERSION_MINOR}.{GLOO_RS_VERSION_PATCH}");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    // SAFETY: a static string.
    assert_eq!(unsafe { CStr::from_ptr(gloo_rs_version()) }.to_str(), Ok(version.as_str()));
    let [major, minor, patch] = [GLOO_RS_VERSION_MAJOR, GLOO_RS_VERSION_MINOR, GLOO_RS_VERSION_PATCH];
    assert_eq!(gloo_rs_version_number(), major * 10_000 + minor * 100 + patch);
}

#[test]
fn a_multi_get_that_fails_clears_its_values() {
    let (mut store, keys) = (std::ptr::null_mut(), [c"key".as_ptr()]);
    let mut values = [std::ptr::dangling_mut::<c_void>()];
    // SAFETY: valid places and strings; the call is refused before it writes anything but the values.
    unsafe {
        assert_eq!(gloo_rs_store_create_in_process(c"clears".as_ptr(), &mut store), GLOO_RS_OK);
        let status = gloo_rs_store_multi_get(store, keys.as_ptr(), 1, 0, values.as_mut_ptr(), std::ptr::null_mut());
        assert_eq!(status, GLOO_RS_ERROR_INVALID_ARGUMENT, "{}", message());
        gloo_rs_store_destroy(store);
    }
    assert!(values[0].is_null());
}

#[test]
fn a_panic_becomes_a_status() {
    assert_eq!(guard("f", || panic!("at {}", 7)), GLOO_RS_ERROR_INTERNAL);
    assert_eq!(message(), "f: defect of the library: at 7");
    assert_eq!(guard("f", || panic!("literal")), GLOO_RS_ERROR_INTERNAL);
    assert_eq!(message(), "f: defect of the library: literal");
    assert_eq!(guard("f", || std::panic::panic_any(7)), GLOO_RS_ERROR_INTERNAL);
    assert_eq!(message(), "f: defect of the library: a panic without a message");
}

#[test]
fn messages_are_kept_per_thread_and_outlive_successes() {
    assert_eq!(message(), "");
    assert_eq!(guard("f", || Err(Error::invalid("here"))), GLOO_RS_ERROR_INVALID_ARGUMENT);
    std::thread::spawn(|| {
        assert_eq!(message(), "");
        assert_eq!(guard("g", || Err(Error::new(ErrorKind::Io, "there"))), GLOO_RS_ERROR_IO);
        assert_eq!(message(), "g: there");
    })
    .join()
    .unwrap();
    assert_eq!(guard("f", || Ok(())), GLOO_RS_OK);
    assert_eq!(message(), "f: here");
    guard("f", || Err(Error::invalid("a\0b")));
    assert_eq!(message(), "f: a\\0b");
}

#[test]
fn statuses_are_the_error_kinds_in_their_order() {
    use ErrorKind::*;
    let kinds = [
        InvalidArgument,
        InvalidOperation,
        Timeout,
        Io,
        ConnectionLost,
        Aborted,
        Mismatch,
        NotFound,
        Unsupported,
        ResourceExhausted,
        Callback,
        Internal,
        Closed,
    ];
    let name = |number| {
        // SAFETY: static strings.
        unsafe { CStr::from_ptr(gloo_rs_status_name(from_number(number))) }.to_str().unwrap()
    };
    assert_eq!(name(GLOO_RS_OK as u32), "GLOO_RS_OK");
    for (kind, status) in kinds.into_iter().zip(1..) {
        assert_eq!(status::status_of(kind) as u32, status);
        // CONNECTION_LOST against ConnectionLost
        let expected = format!("GLOO_RS_ERROR_{kind:?}").replace('_', "").to_lowercase();
        assert_eq!(name(status).replace('_', "").to_lowercase(), expected);
    }
    assert_eq!(name(14), "unknown status");
    assert_eq!(name(u32::MAX), "unknown status");
}

#[test]
fn numbers_of_types_and_operations_are_the_header_s() {
    let types = [
        GLOO_RS_INT8,
        GLOO_RS_UINT8,
        GLOO_RS_INT16,
        GLOO_RS_UINT16,
        GLOO_RS_INT32,
        GLOO_RS_UINT32,
        GLOO_RS_INT64,
        GLOO_RS_UINT64,
        GLOO_RS_FLOAT16,
        GLOO_RS_BFLOAT16,
        GLOO_RS_FLOAT32,
        GLOO_RS_FLOAT64,
        GLOO_RS_COMPLEX64,
        GLOO_RS_COMPLEX128,
        GLOO_RS_BOOL,
    ];
    // SAFETY: the numbers are initialised.
    let (data_type, op) = unsafe {
        let data_type = |number| types::data_type(from_number(number));
        (data_type, |number| types::op(from_number(number)))
    };
    assert_eq!(types.map(|value| data_type(value as u32).unwrap()), DataType::ALL);
    let ops =
        [GLOO_RS_SUM, GLOO_RS_PRODUCT, GLOO_RS_MIN, GLOO_RS_MAX, GLOO_RS_AVERAGE, GLOO_RS_AND, GLOO_RS_OR, GLOO_RS_XOR];
    assert_eq!(ops.map(|value| op(value as u32).unwrap()), ReduceOp::ALL);
    // Options that were filled with zeros have no type.
    assert_eq!(GLOO_RS_DATA_TYPE_UNSET as u32, 0);
    assert!(data_type(0).unwrap_err().message().contains("not set"));
    for number in [types.len() as u32 + 1, u32::MAX] {
        assert_eq!(
            data_type(number).unwrap_err().message(),
            format!("data_type is {number}, which is not a value of its enumeration")
        );
    }
    assert!(op(8).is_err());
    // SAFETY: `from_number` initialises the argument.
    let size = |number| unsafe { gloo_rs_data_type_size(from_number(number)) };
    assert_eq!((size(GLOO_RS_COMPLEX128 as u32), size(16), size(0)), (16, 0, 0));
}

#[test]
#[cfg_attr(miri, ignore = "needs the network")]
fn a_number_that_is_no_value_of_an_enumeration_is_refused() {
    let (mut device, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut options = MaybeUninit::<gloo_rs_context_options_t>::uninit();
    // SAFETY: `init` fills the struct; the places of handles are valid.
    let options = unsafe {
        assert_eq!(gloo_rs_device_create(std::ptr::null(), &mut device), GLOO_RS_OK);
        gloo_rs_context_options_init(options.as_mut_ptr(), size_of::<gloo_rs_context_options_t>());
        options.assume_init()
    };
    let wrong = [
        ("connect is 2,", gloo_rs_context_options_t { connect: from_number(2), ..options }),
        ("check_calls is 4294967295,", gloo_rs_context_options_t { check_calls: from_number(u32::MAX), ..options }),
    ];
    for (text, options) in wrong {
        // SAFETY: `device` is a live handle; `options` is initialised; the place of the handle is valid.
        let status = unsafe { gloo_rs_context_create(device, 0, 1, &options, &mut context) };
        assert_eq!(status, GLOO_RS_ERROR_INVALID_ARGUMENT);
        assert!(message().contains(text), "{}", message());
    }
    // SAFETY: no other call uses the handle.
    unsafe { gloo_rs_device_destroy(device) };
}

#[test]
fn a_flag_may_have_any_byte() {
    for byte in [0u8, 1, 2, 255] {
        let mut flag = MaybeUninit::<bool>::uninit();
        // SAFETY: of the same size; a `MaybeUninit` may hold any byte.
        unsafe { flag.as_mut_ptr().cast::<u8>().write(byte) };
        // SAFETY: initialised.
        assert_eq!(unsafe { enumeration::is_set(flag) }, byte != 0);
    }
}

/// A field appended to a struct must not land in bytes that earlier callers left uninitialised.
#[test]
fn options_structs_have_no_padding_at_the_end() {
    macro_rules! check {
        ($($name:ident.$last:ident: $type:ty;)*) => {
            $(
                assert_eq!(offset_of!($name, $last) + size_of::<$type>(), size_of::<$name>(), stringify!($name));
                assert_eq!(offset_of!($name, struct_size), 0);
                assert!(<$name as Options>::REQUIRED <= size_of::<$name>());
                assert_eq!(<$name as Options>::REQUIRED % align_of::<$name>(), 0);
            )*
        };
    }
    check! {
        gloo_rs_tls_options_t.names: *mut ();
        gloo_rs_ibverbs_options_t.reserved: u32;
        gloo_rs_ibverbs_port_t.gid_index: i32;
        gloo_rs_ibverbs_gid_t.kind: u32;
        gloo_rs_device_options_t.ptracer: *mut ();
        gloo_rs_store_callbacks_t.destroy: *mut ();
        gloo_rs_context_options_t.order: *const ();
        gloo_rs_tcp_store_options_t.tls: *mut ();
        gloo_rs_connection_statistics_t.crowded_out: u64;
        gloo_rs_redis_options_t.ttl_s: u32;
        gloo_rs_collective_options_t.order: *const ();
    }
}

#[repr(C)]
struct Longer {
    known: gloo_rs_collective_options_t,
    new: [u64; 2],
}

#[test]
fn options_are_initialised_as_far_as_the_caller_knows_them() {
    let mut longer = MaybeUninit::<Longer>::uninit();
    // SAFETY: the struct may be filled with any bytes, and is then valid.
    let longer = unsafe {
        longer.as_mut_ptr().cast::<u8>().write_bytes(0xaa, size_of::<Longer>());
        gloo_rs_collective_options_init(longer.as_mut_ptr().cast(), size_of::<Longer>());
        longer.assume_init()
    };
    assert_eq!(longer.known.struct_size, size_of::<Longer>());
    assert_eq!(longer.known.timeout_ms, GLOO_RS_TIMEOUT_DEFAULT);
    // SAFETY: initialised above.
    let (data_type, op) = unsafe { (longer.known.data_type.assume_init(), longer.known.op.assume_init()) };
    assert_eq!((data_type, op, longer.known.count), (GLOO_RS_DATA_TYPE_UNSET, GLOO_RS_SUM, 0));
    assert!(longer.known.algorithm.is_null() && longer.known.function.is_none());
    assert_eq!(longer.new, [0, 0]);

    let mut short = longer.known;
    (short.count, short.base) = (77, 77);
    let size = offset_of!(gloo_rs_collective_options_t, base);
    // SAFETY: valid for more than `size`.
    unsafe { gloo_rs_collective_options_init(&mut short, size) };
    assert_eq!((short.struct_size, short.count, short.base), (size, 0, 77));

    // SAFETY: NULL and sizes without a struct_size are left alone.
    unsafe {
        gloo_rs_collective_options_init(std::ptr::null_mut(), 8);
        gloo_rs_collective_options_init(&mut short, 7);
    }
    assert_eq!(short.struct_size, size);
}

#[test]
fn options_are_read_as_far_as_the_caller_knows_them() {
    let read = |options: *const gloo_rs_collective_options_t| {
        // SAFETY: NULL, or valid for `struct_size` bytes, in every call here.
        unsafe { options::read(options) }
    };
    let mut longer = MaybeUninit::<Longer>::uninit();
    // SAFETY: `init` fills all bytes.
    let mut longer = unsafe {
        gloo_rs_collective_options_init(longer.as_mut_ptr().cast(), size_of::<Longer>());
        longer.assume_init()
    };
    (longer.known.count, longer.known.base) = (5, 6);
    let options = read((&raw const longer).cast()).unwrap();
    assert_eq!((options.count, options.base), (5, 6));

    longer.new[1] = 7 << 8;
    let error = read((&raw const longer).cast()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let byte = offset_of!(Longer, new) + size_of::<u64>() + 1;
    assert!(
        error.message().contains(&format!("gloo_rs_collective_options_t has a nonzero value at byte {byte},")),
        "{error}"
    );

    longer.known.struct_size = offset_of!(gloo_rs_collective_options_t, base);
    let options = read(&longer.known).unwrap();
    assert_eq!((options.count, options.base), (5, 0), "a field behind the caller's struct was read");

    let required = <gloo_rs_collective_options_t as Options>::REQUIRED;
    for size in [0, 8, required - 8, required + 4, 4104, 1 << 40] {
        longer.known.struct_size = size;
        let error = read(&longer.known).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("gloo_rs_collective_options_t"), "{error}");
        assert!(error.message().contains(&format!("is {size};")), "{error}");
        assert!(error.message().contains("call gloo_rs_collective_options_init first"), "{error}");
    }
    assert!(read(std::ptr::null()).err().unwrap().message().contains("NULL"));
    assert!(read((&raw const longer).cast::<u8>().wrapping_add(1).cast()).err().unwrap().message().contains("aligned"));
}

#[test]
#[cfg_attr(miri, ignore = "needs the network")]
fn an_impossible_struct_size_is_refused_and_nothing_is_written_for_it() {
    let mut device = std::ptr::null_mut();
    // SAFETY: NULL options; the handle's place is valid.
    assert_eq!(unsafe { gloo_rs_device_create(std::ptr::null(), &mut device) }, GLOO_RS_OK);
    // SAFETY: integers only.
    let mut statistics: gloo_rs_connection_statistics_t = unsafe { std::mem::zeroed() };
    for size in [0, 4, 4104, 1 << 40, usize::MAX, usize::MAX - 7] {
        (statistics.struct_size, statistics.foreign) = (size, 77);
        // SAFETY: the struct is valid; its size is what is tested.
        let status = unsafe { gloo_rs_device_connection_statistics(device, &mut statistics) };
        assert_eq!(status, GLOO_RS_ERROR_INVALID_ARGUMENT);
        assert!(message().contains(&format!("gloo_rs_connection_statistics_t is {size};")), "{}", message());
        assert_eq!((statistics.struct_size, statistics.foreign), (size, 77));
    }
    statistics.struct_size = size_of_val(&statistics);
    // SAFETY: `device` is a live handle, and `struct_size` is that of `statistics`.
    assert_eq!(unsafe { gloo_rs_device_connection_statistics(device, &mut statistics) }, GLOO_RS_OK);
    assert_eq!(statistics.foreign, 0);
    // SAFETY: no other call uses the handle.
    unsafe { gloo_rs_device_destroy(device) };

    let mut options = MaybeUninit::<[gloo_rs_collective_options_t; 2]>::zeroed();
    // SAFETY: of an impossible size only the first struct is filled.
    let options = unsafe {
        gloo_rs_collective_options_init(options.as_mut_ptr().cast(), 1 << 40);
        options.assume_init()
    };
    assert_eq!((options[0].struct_size, options[0].timeout_ms), (1 << 40, GLOO_RS_TIMEOUT_DEFAULT));
    // SAFETY: the struct is valid.
    assert!(unsafe { options::read(&options[0]) }.is_err());
}

struct a_t;
impl Handle for a_t {
    type Inner = String;
    const TAG: u32 = 1;
    const NAME: &'static str = "a_t";
}

struct b_t;
impl Handle for b_t {
    type Inner = usize;
    const TAG: u32 = 2;
    const NAME: &'static str = "b_t";
}

#[test]
fn handles_of_another_kind_are_refused() {
    let mut a: *mut a_t = std::ptr::null_mut();
    // SAFETY: a valid place.
    handle::create("inner".to_owned(), unsafe { Out::handle(&mut a, "a") }.unwrap());
    // SAFETY: NULL, misaligned, or a live handle.
    unsafe {
        assert_eq!(**handle::get(a, "a").unwrap(), "inner");
        assert_eq!(
            handle::get(a.cast::<b_t>(), "b").unwrap_err().message().split(':').next(),
            Some("b is not a live b_t")
        );
        assert!(handle::take(a.cast::<b_t>(), "b").is_err());
        assert!(handle::get(a.byte_add(1), "a").is_err());
        assert!(handle::take(a.byte_add(1), "a").is_err());
        assert!(handle::get::<a_t>(std::ptr::null(), "a").unwrap_err().message().contains("a is NULL"));
        assert!(handle::take::<a_t>(std::ptr::null_mut(), "a").unwrap().is_none());
        let held = handle::get(a, "a").unwrap();
        drop(handle::take(a, "a").unwrap());
        assert_eq!(**held, "inner", "what a running call uses outlives the handle");
    }
}

#[test]
fn dropping_the_last_waits_for_running_calls() {
    struct Flagged(Arc<AtomicUsize>);
    impl Drop for Flagged {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let inner = Arc::new(Flagged(dropped.clone()));
    let (hastened, running) = (AtomicUsize::new(0), inner.clone());
    std::thread::scope(|scope| {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            ended.recv().unwrap();
            drop(running);
        });
        let dropped = &dropped;
        handle::drop_last(inner, |_| {
            assert_eq!(dropped.load(Ordering::SeqCst), 0);
            if hastened.fetch_add(1, Ordering::SeqCst) == 3 {
                end.send(()).unwrap();
            }
        });
        assert_eq!(dropped.load(Ordering::SeqCst), 1);
        assert!(hastened.load(Ordering::SeqCst) > 3);
    });
}

#[test]
fn plain_arguments() {
    assert_eq!(pointer::timeout(-1).unwrap(), None);
    assert_eq!(pointer::timeout(0).unwrap(), Some(Duration::ZERO));
    assert_eq!(pointer::timeout(i64::MAX - 1).unwrap(), Some(Duration::from_millis(i64::MAX as u64 - 1)));
    assert_eq!(pointer::timeout(GLOO_RS_TIMEOUT_INFINITE).unwrap(), Some(Duration::MAX));
    for ms in [-2, i64::MIN] {
        assert!(pointer::timeout(ms).unwrap_err().message().contains(&ms.to_string()));
    }
    assert_eq!(pointer::rank(3, 4, "root").unwrap(), 3);
    for rank in [4, -1, i32::MIN, i32::MAX] {
        let error = pointer::rank(rank, 4, "root").unwrap_err();
        assert_eq!(error.message(), format!("root is {rank}; ranks of this context are 0 to 3"));
    }
    let misaligned = std::ptr::without_provenance::<u64>(9);
    let huge = usize::MAX / 8;
    // SAFETY: refused before they are read.
    unsafe {
        assert!(pointer::slice(misaligned, 1, "list").unwrap_err().message().contains("not aligned to 8"));
        assert!(pointer::slice::<u64>(std::ptr::null(), 1, "list").unwrap_err().message().contains("list is NULL"));
        assert!(pointer::slice(&0u64, huge, "list").is_err());
        assert!(pointer::slice(&0u64, huge + 1, "list").is_err());
        assert!(pointer::slice::<u64>(std::ptr::null(), 0, "list").unwrap().is_empty());
        let secret = pointer::text(c"key \xff".as_ptr(), "token").unwrap_err();
        assert_eq!(secret.message(), "token is not UTF-8: the byte at 4 is 0xff");
        assert!(pointer::optional_text(std::ptr::null(), "key").unwrap().is_none());
    }
    assert!(pointer::check_range(std::ptr::without_provenance(usize::MAX - 3), 8, "data").is_err());
    assert!(pointer::check_range(std::ptr::without_provenance(8), usize::MAX, "data").is_err());
    assert!(pointer::check_range(std::ptr::null(), 0, "data").is_ok());
}

#[test]
fn results_of_unknown_length() {
    let mut buffer = [9u8; 4];
    let mut needed = 0;
    let data = buffer.as_mut_ptr().cast();
    // SAFETY: lengths are those of the buffer or less.
    unsafe {
        pointer::copy_out(b"abc", data, 4, &mut needed).unwrap();
        assert_eq!((needed, &buffer), (3, b"abc\x09"));
        assert!(
            pointer::copy_out(b"abcde", data, 4, &mut needed).unwrap_err().message().contains("4 bytes; 5 are needed")
        );
        assert_eq!((needed, &buffer), (5, b"abc\x09"));
        pointer::copy_out(b"abc", std::ptr::null_mut(), 0, &mut needed).unwrap();
        assert_eq!(needed, 3);
        assert!(pointer::copy_out(b"abc", std::ptr::null_mut(), 0, std::ptr::null_mut()).is_err());
        pointer::copy_out_text("xyz", data.cast(), 4, std::ptr::null_mut()).unwrap();
        assert_eq!(&buffer, b"xyz\0");
        let copy = Malloced::copy_of(b"").unwrap().into_raw();
        assert!(!copy.is_null());
        gloo_rs_free(copy);
        gloo_rs_free(std::ptr::null_mut());
    }
}

#[test]
fn lists_of_structs_of_the_caller_s_size() {
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Item {
        struct_size: usize,
        value: u64,
    }
    // SAFETY: repr(C), a usize first, and integers only.
    unsafe impl Options for Item {
        const NAME: &'static str = "item_t";
        const REQUIRED: usize = size_of::<usize>();
        fn set_defaults(&mut self) {}
    }
    let values = [Item { struct_size: 0, value: 7 }, Item { struct_size: 0, value: 8 }];
    let mut count = 0;
    // SAFETY: lists are NULL or have the capacity that is given.
    let mut fill =
        |list: *mut Item, capacity| unsafe { options::fill_list(list, capacity, &mut count, "items", &values) };
    fill(std::ptr::null_mut(), 0).unwrap();
    // These items are those of a later version of the header, which has one more field.
    let mut list = [[24usize, 1, 1], [24, 1, 1], [24, 1, 1]];
    assert_eq!(fill(list.as_mut_ptr().cast(), 1).unwrap_err().message(), "items has room for 1; 2 are needed");
    fill(list.as_mut_ptr().cast(), 3).unwrap();
    assert_eq!(list, [[24, 7, 0], [24, 8, 0], [24, 1, 1]]);
    list[1][0] = 16;
    let message = fill(list.as_mut_ptr().cast(), 3).unwrap_err().message().to_owned();
    assert_eq!(message, "struct_size of items[1] is 16, but that of the first is 24");
    list[0][0] = 0;
    assert!(fill(list.as_mut_ptr().cast(), 3).unwrap_err().message().starts_with("struct_size of item_t is 0"));
    assert_eq!(count, 2);
}

unsafe extern "C" fn destroys(
    into: *mut c_void,
    _: *const c_void,
    right: *const c_void,
    _: usize,
    context: *mut c_void,
) -> i32 {
    // SAFETY: the test passes its context; the library, one element.
    unsafe {
        gloo_rs_context_destroy(context.cast());
        *into.cast::<u8>() = *right.cast::<u8>();
    }
    0
}

#[test]
#[cfg_attr(miri, ignore = "needs the network")]
fn a_reduction_function_may_destroy_its_context() {
    let device = crate::transport::device::Device::create(&Default::default()).unwrap();
    let context = crate::context::Context::new(device.clone(), 0, 1, &Default::default()).unwrap();
    let still = Arc::downgrade(&context);
    let mut handle: *mut gloo_rs_context_t = std::ptr::null_mut();
    let inner = super::context_handle::ContextHandle::new(context);
    // SAFETY: a valid place.
    handle::create(inner, unsafe { Out::handle(&mut handle, "context") }.unwrap());
    let (bytes, mut output) = ([1u8, 2], 0u8);
    let (inputs, outputs) = ([(&raw const bytes[0]).cast(), (&raw const bytes[1]).cast()], [(&raw mut output).cast()]);
    let mut options = MaybeUninit::<gloo_rs_collective_options_t>::uninit();
    // SAFETY: `init` fills the struct; what it points to lives until the call returns.
    let status = unsafe {
        gloo_rs_collective_options_init(options.as_mut_ptr(), size_of::<gloo_rs_collective_options_t>());
        let mut options = options.assume_init();
        options.function = Some(destroys);
        (options.data_type, options.user) = (MaybeUninit::new(GLOO_RS_UINT8), handle.cast());
        (options.inputs, options.num_inputs) = (inputs.as_ptr(), 2);
        (options.outputs, options.num_outputs) = (outputs.as_ptr(), 1);
        options.count = 1;
        gloo_rs_collective(handle, MaybeUninit::new(GLOO_RS_ALLREDUCE), &options)
    };
    assert_eq!(status, GLOO_RS_ERROR_CLOSED);
    assert!(still.upgrade().is_none(), "the context outlives the call");
}
