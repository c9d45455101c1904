//! One GPU, as a context of this library uses it: by the primary context, which the CUDA runtime and the frameworks
//! use, on a stream of its own. The calling thread's current context is as before after each call.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::{Context, Device, Driver, Event, Function, Module, Stream, number};
use super::kernels::{Arguments, BLOCK_THREADS, Kernel, blocks, ptx};
use crate::error::{Error, ErrorKind, Result};
use crate::sys::ForkMark;

/// The oldest driver that takes the kernels, which are PTX 8.1, and the oldest GPU that runs them.
const KERNELS_NEED: (c_int, c_int) = (12010, 7);

/// A GPU.
pub struct Gpu {
    driver: Arc<Driver>,
    ordinal: c_int,
    device: Device,
    /// The primary context, which is retained.
    context: Context,
    /// Null if it could not be created.
    stream: Stream,
    multiprocessors: u32,
    /// The major number of its compute capability.
    capability: c_int,
    kernels: Mutex<Kernels>,
    /// Events that nobody uses.
    events: Mutex<Vec<Event>>,
    fork: ForkMark,
}

/// The kernels that were loaded.
struct Kernels {
    /// Null until one is needed.
    module: Module,
    functions: HashMap<Kernel, Function>,
}

// SAFETY: the driver's objects are not tied to a thread.
unsafe impl Send for Gpu {}
// SAFETY: the driver's functions may be called from any thread at any time.
unsafe impl Sync for Gpu {}

/// What a GPU does in the order of its stream. Addresses are those of the driver.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    /// Copies bytes.
    Copy {
        /// To this address.
        into: u64,
        /// From this one.
        from: u64,
        /// The number of bytes.
        bytes: usize,
    },
    /// Runs a kernel.
    Launch {
        /// This one.
        kernel: Kernel,
        /// With these arguments.
        arguments: Arguments,
        /// Bytes of the result.
        bytes: usize,
    },
}

impl Gpu {
    /// The GPU with this number.
    pub fn open(driver: &Arc<Driver>, ordinal: c_int) -> Result<Self> {
        let fork = ForkMark::new().map_err(|error| Error::io("cannot mark this process", &error))?;
        let (mut device, mut context) = (0, std::ptr::null_mut());
        let (mut multiprocessors, mut capability) = (0, 0);
        // SAFETY: the driver writes to the variables. The context is released when the GPU is dropped.
        unsafe {
            driver.device_get(&mut device, ordinal)?;
            driver.device_get_attribute(&mut multiprocessors, number::DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)?;
            driver.device_get_attribute(&mut capability, number::DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)?;
            driver.device_primary_ctx_retain(&mut context, device)?;
        }
        let mut gpu = Self {
            driver: driver.clone(),
            ordinal,
            device,
            context,
            stream: std::ptr::null_mut(),
            multiprocessors: multiprocessors.unsigned_abs(),
            capability,
            kernels: Mutex::new(Kernels { module: std::ptr::null_mut(), functions: HashMap::new() }),
            events: Mutex::default(),
            fork,
        };
        gpu.stream = gpu.within(|| {
            let (mut lowest, mut highest, mut stream) = (0, 0, std::ptr::null_mut());
            // SAFETY: the driver writes to the variables; the stream is destroyed when the GPU is dropped.
            unsafe {
                driver.ctx_get_stream_priority_range(&mut lowest, &mut highest)?;
                driver.stream_create_with_priority(&mut stream, number::STREAM_NON_BLOCKING, highest)?;
            }
            Ok(stream)
        })?;
        Ok(gpu)
    }

    /// The number of the GPU in this process.
    pub fn ordinal(&self) -> c_int {
        self.ordinal
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Whether it is of another process, of which this one is a child by fork: the driver must not be called.
    pub fn is_inherited(&self) -> bool {
        self.fork.is_child()
    }

    /// Whether driver and GPU take the kernels.
    pub fn takes_kernels(&self) -> bool {
        (self.driver.version() >= KERNELS_NEED.0) && (self.capability >= KERNELS_NEED.1)
    }

    /// Refuses memory of another context than the primary one: the library's stream cannot order what is done to it.
    pub fn check_context(&self, pointer: u64) -> Result<()> {
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: this attribute is a context. Memory from pools and from `cuMemCreate` has none.
        unsafe { self.driver.attribute(pointer, number::POINTER_ATTRIBUTE_CONTEXT, &mut context) }?;
        if context.is_null() || context == self.context {
            return Ok(());
        }
        let text = format!(
            "it is memory of a context of GPU {} that is not the primary one, which CUDA's runtime uses",
            self.ordinal
        );
        Err(Error::new(ErrorKind::Unsupported, text))
    }

    /// Calls `body` while the GPU's context is the current one of this thread, and while a capture of a stream in
    /// another thread does not forbid calls of the driver.
    pub fn within<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let driver = &self.driver;
        // SAFETY: the context is retained.
        unsafe { driver.ctx_push_current(self.context) }?;
        let result = self.during_captures(body);
        let mut popped = std::ptr::null_mut();
        // SAFETY: the driver writes to the variable.
        let restored = unsafe { driver.ctx_pop_current(&mut popped) };
        result.and_then(|value| restored.map(|()| value))
    }

    fn during_captures<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut mode = number::STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver reads and writes the variable, which is the thread's own mode afterwards.
        unsafe { self.driver.thread_exchange_stream_capture_mode(&mut mode) }?;
        let result = body();
        // SAFETY: as above.
        let restored = unsafe { self.driver.thread_exchange_stream_capture_mode(&mut mode) };
        result.and_then(|value| restored.map(|()| value))
    }

    /// Enqueues a task. Called [`within`](Self::within).
    ///
    /// # Safety
    /// The GPU can access the memory of the task until the task is done, and nobody else does so in a conflicting way.
    pub unsafe fn enqueue(&self, task: &Task) -> Result<()> {
        match *task {
            // SAFETY: by the contract.
            Task::Copy { into, from, bytes } => unsafe { self.driver.memcpy_async(into, from, bytes, self.stream) },
            Task::Launch { kernel, mut arguments, bytes } => {
                let function = self.function(kernel)?;
                let mut parameters = [(&raw mut arguments).cast::<c_void>()];
                let (blocks, none) = (blocks(bytes, self.multiprocessors), std::ptr::null_mut());
                // SAFETY: by the contract; the kernel has this parameter, which the driver copies.
                unsafe {
                    let parameters = parameters.as_mut_ptr();
                    self.driver.launch_kernel(
                        function,
                        blocks,
                        1,
                        1,
                        BLOCK_THREADS,
                        1,
                        1,
                        0,
                        self.stream,
                        parameters,
                        none,
                    )
                }
            }
        }
    }

    /// The function of a kernel, of a module that is loaded when it is needed first. Called [`within`](Self::within).
    fn function(&self, kernel: Kernel) -> Result<Function> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = kernels.functions.get(&kernel) {
            return Ok(*function);
        }
        if kernels.module.is_null() {
            let (text, mut module) = (ptx()?, std::ptr::null_mut());
            // SAFETY: a text that ends with zero; the driver keeps nothing of it.
            unsafe { self.driver.module_load_data(&mut module, text.as_ptr().cast()) }?;
            kernels.module = module;
        }
        let name = CString::new(kernel.name()).unwrap_or_default();
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with zero.
        unsafe { self.driver.module_get_function(&mut function, kernels.module, name.as_ptr()) }
            .map_err(|error| error.context(format_args!("the kernel {}", kernel.name())))?;
        kernels.functions.insert(kernel, function);
        Ok(function)
    }

    /// Has the stream reach an event after its work so far. Called [`within`](Self::within).
    pub fn record(&self) -> Result<Mark<'_>> {
        let known = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let create = || {
            let mut event = std::ptr::null_mut();
            // SAFETY: the driver writes to the variable; the event is destroyed when the GPU is dropped.
            unsafe { self.driver.event_create(&mut event, number::EVENT_DISABLE_TIMING) }.map(|()| event)
        };
        let mark = Mark { gpu: self, event: known.map_or_else(create, Ok)? };
        // SAFETY: event and stream exist, and are of one context.
        unsafe { self.driver.event_record(mark.event, self.stream) }?;
        Ok(mark)
    }

    /// Waits until the stream has done all its work.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream exists.
        self.within(|| unsafe { self.driver.stream_synchronize(self.stream) })
    }
}

/// A place in the order of a GPU's stream.
pub struct Mark<'a> {
    gpu: &'a Gpu,
    event: Event,
}

impl Mark<'_> {
    /// Waits until the stream has come here.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event exists.
        self.gpu.within(|| unsafe { self.gpu.driver.event_synchronize(self.event) })
    }
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        self.gpu.events.lock().unwrap_or_else(PoisonError::into_inner).push(self.event);
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let kernels = self.kernels.get_mut().unwrap_or_else(PoisonError::into_inner).module;
        let events = std::mem::take(self.events.get_mut().unwrap_or_else(PoisonError::into_inner));
        let driver = &self.driver;
        // What the driver refuses to free remains until the process ends; nobody could be told.
        let _ = self.within(|| {
            // SAFETY: all were created, and nobody uses them any more.
            unsafe {
                for event in events {
                    let _ = driver.event_destroy(event);
                }
                if !kernels.is_null() {
                    let _ = driver.module_unload(kernels);
                }
                if !self.stream.is_null() {
                    let _ = driver.stream_destroy(self.stream);
                }
            }
            Ok(())
        });
        // SAFETY: the context was retained once, by `open`.
        let _ = unsafe { driver.device_primary_ctx_release(self.device) };
    }
}
