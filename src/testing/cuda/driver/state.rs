//! The machine's state, and what each function of the driver does to it.

mod work;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::ops::Range;
use std::sync::LazyLock;

use super::Pace;
use super::memory::{Kind, Memory};
use super::streams::{Event, Operation, Source, Stream, Streams};
use crate::cuda::driver::number::*;
use crate::testing::cuda::ptx::{Geometry, Module};
use crate::testing::reductions::Random;

/// More numbers of `cuda.h`.
pub const ERROR_NOT_INITIALIZED: c_int = 3;
pub const ERROR_INVALID_CONTEXT: c_int = 201;
pub const ERROR_UNSUPPORTED_PTX_VERSION: c_int = 222;
pub const ERROR_INVALID_HANDLE: c_int = 400;
pub const ERROR_NOT_FOUND: c_int = 500;
pub const ERROR_ILLEGAL_ADDRESS: c_int = 700;
pub const ERROR_LAUNCH_TIMEOUT: c_int = 702;
pub const ERROR_LAUNCH_FAILED: c_int = 719;
pub const ERROR_STREAM_CAPTURE_UNSUPPORTED: c_int = 900;

/// The mode of threads that have not exchanged it.
const STREAM_CAPTURE_MODE_GLOBAL: c_int = 0;

/// Handles of primary contexts, and of others, begin here; the number of the GPU is added.
const PRIMARY: usize = 0x1000;
const OTHER: usize = 0x2000;

/// What functions return: an error is a number of `cuda.h`.
pub type Answer<T> = Result<T, c_int>;

/// The only module that this driver takes.
const PTX: &str = include_str!("../../../cuda/kernels.ptx");

/// The kernels, translated once.
static KERNELS: LazyLock<Module> = LazyLock::new(|| Module::parse(PTX).expect("the kernels"));

/// What exists of the library's. The defaults are those of a library that has nothing, and of a thread as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// How often it has retained a primary context.
    pub retained: usize,
    pub streams: usize,
    pub events: usize,
    pub modules: usize,
    /// Its pieces of pinned memory.
    pub pinned: usize,
    /// Operations that streams have not done.
    pub operations: usize,
    /// Whether another context is current than before, or another capture mode.
    pub is_thread_changed: bool,
}

pub struct State {
    random: Random,
    pace: Pace,
    pub version: c_int,
    /// For each GPU, how often the library has retained its primary context.
    retained: Vec<usize>,
    pub memory: Memory,
    streams: Streams,
    modules: BTreeMap<usize, usize>,
    /// The module of each function, and its name.
    functions: BTreeMap<usize, (usize, String)>,
    handles: usize,
    /// The thread's contexts, the current one last.
    contexts: Vec<usize>,
    mode: c_int,
    pub is_captured: bool,
    /// The names of the functions that were called.
    pub log: Vec<&'static str>,
    /// Which calls fail, and with what.
    pub failing: Option<(Range<usize>, c_int)>,
    /// The error that all calls return since the work of a stream has failed.
    fault: Option<c_int>,
    pub misuse: Vec<String>,
}

/// What a thread may call whatever another one captures.
const SAFE: [&str; 8] = [
    "cuPointerGetAttribute",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuThreadExchangeStreamCaptureMode",
];

impl State {
    pub fn new(gpus: usize, seed: u64, pace: Pace) -> Self {
        // On the stack of a thread: that of a simulated rank is small.
        LazyLock::force(&KERNELS);
        Self {
            random: Random(seed),
            pace,
            version: 12010,
            retained: vec![0; gpus],
            memory: Memory::default(),
            streams: Streams::default(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            handles: 0x10000,
            // The program's.
            contexts: vec![PRIMARY],
            mode: STREAM_CAPTURE_MODE_GLOBAL,
            is_captured: false,
            log: Vec::new(),
            failing: None,
            fault: None,
            misuse: Vec::new(),
        }
    }

    /// What every function begins with.
    pub fn enter(&mut self, name: &'static str) -> Answer<()> {
        let call = self.log.len();
        self.log.push(name);
        if let Some((calls, status)) = &self.failing
            && calls.contains(&call)
        {
            return Err(*status);
        }
        if let Some(status) = self.fault {
            return Err(status);
        }
        if self.is_captured && self.mode != STREAM_CAPTURE_MODE_RELAXED && !SAFE.contains(&name) {
            return self
                .wrong(ERROR_STREAM_CAPTURE_UNSUPPORTED, format!("{name} breaks the capture of another thread"));
        }
        if self.pace == Pace::Any && !self.is_lost() {
            for _ in 0..self.random.below(4) {
                self.step();
            }
        }
        Ok(())
    }

    fn is_lost(&self) -> bool {
        self.failing.as_ref().is_some_and(|(calls, _)| calls.end == usize::MAX && calls.start < self.log.len())
    }

    /// Notes a wrong use, which fails with `status`.
    fn wrong<T>(&mut self, status: c_int, what: String) -> Answer<T> {
        self.misuse.push(what);
        Err(status)
    }

    pub fn objects(&self) -> Objects {
        let library = self.memory.allocations.values().filter(|found| found.is_library);
        Objects {
            retained: self.retained.iter().sum(),
            streams: self.streams.streams.len(),
            events: self.streams.events.len(),
            modules: self.modules.len(),
            pinned: library.count(),
            operations: self.streams.streams.values().map(|stream| stream.queue.len()).sum(),
            is_thread_changed: self.contexts != [PRIMARY] || self.mode != STREAM_CAPTURE_MODE_GLOBAL,
        }
    }

    fn handle(&mut self) -> usize {
        self.handles += 8;
        self.handles
    }

    // Memory, as the program uses it.

    pub fn allocate(&mut self, kind: Kind, bytes: usize) -> u64 {
        self.memory.allocate(kind, bytes, false)
    }

    pub fn register(&mut self, memory: &mut [u8]) -> u64 {
        self.memory.register(memory)
    }

    /// Frees memory of the program. Nothing accesses it once the GPU is lost, whatever its streams had to do, and the
    /// library cannot wait for them then.
    pub fn free(&mut self, address: u64) -> bool {
        if !self.is_lost() {
            self.check_unused(address);
        }
        self.memory.free(address)
    }

    /// Notes it if a stream has work with memory that is about to be freed.
    fn check_unused(&mut self, address: u64) {
        let is_there = |accessed: u64| self.memory.find(accessed).is_some_and(|(start, _)| start == address);
        if self.streams.pending().any(|(accessed, _)| is_there(accessed)) {
            self.misuse.push(format!("memory at {address:#x} is freed while a stream has work with it"));
        }
    }

    pub fn write(&mut self, address: u64, bytes: &[u8]) {
        let into = self.memory.bytes(address, bytes.len()).expect("memory that was allocated");
        // SAFETY: the memory has these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    }

    pub fn read(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        let from = self.memory.bytes(address, bytes).expect("memory that was allocated");
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()
    }

    // Functions of the driver. The caller has called `enter`.

    /// An attribute of memory; none is known of memory that the driver does not know.
    pub fn attribute(&self, attribute: c_int, pointer: u64) -> Answer<usize> {
        let (_, found) = self.memory.find(pointer).ok_or(ERROR_INVALID_VALUE)?;
        let gpu = match found.kind {
            Kind::Device(gpu) | Kind::Pool(gpu) | Kind::Other(gpu) | Kind::Managed(gpu) => gpu,
            Kind::Pinned | Kind::Registered => 0,
        };
        const MEMORY_TYPE: c_int = 2;
        const IS_MANAGED: c_int = 8;
        match (attribute, found.kind) {
            (MEMORY_TYPE, Kind::Pinned | Kind::Registered) => Ok(1),
            (MEMORY_TYPE, _) => Ok(2),
            (IS_MANAGED, kind) => Ok(usize::from(matches!(kind, Kind::Managed(_)))),
            (POINTER_ATTRIBUTE_CONTEXT, Kind::Pool(_)) => Ok(0),
            (POINTER_ATTRIBUTE_CONTEXT, Kind::Other(gpu)) => Ok(OTHER + gpu),
            (POINTER_ATTRIBUTE_CONTEXT, _) => Ok(PRIMARY + gpu),
            (POINTER_ATTRIBUTE_DEVICE_ORDINAL, _) => Ok(gpu),
            _ => Err(ERROR_INVALID_VALUE),
        }
    }

    pub fn device(&self, ordinal: c_int) -> Answer<c_int> {
        // Another number than the ordinal's, which it need not be.
        if (0..self.retained.len() as c_int).contains(&ordinal) { Ok(ordinal + 40) } else { Err(ERROR_INVALID_VALUE) }
    }

    fn gpu(&mut self, device: c_int) -> Answer<usize> {
        match usize::try_from(device - 40) {
            Ok(gpu) if gpu < self.retained.len() => Ok(gpu),
            _ => self.wrong(ERROR_INVALID_VALUE, format!("there is no device {device}")),
        }
    }

    pub fn device_attribute(&mut self, attribute: c_int, device: c_int) -> Answer<c_int> {
        self.gpu(device)?;
        match attribute {
            // One, so that few threads are interpreted.
            DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => Ok(1),
            DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => Ok(7),
            _ => self.wrong(ERROR_INVALID_VALUE, format!("device attribute {attribute} is not known")),
        }
    }

    pub fn retain(&mut self, device: c_int) -> Answer<usize> {
        let gpu = self.gpu(device)?;
        self.retained[gpu] += 1;
        Ok(PRIMARY + gpu)
    }

    pub fn release(&mut self, device: c_int) -> Answer<()> {
        let gpu = self.gpu(device)?;
        match self.retained[gpu].checked_sub(1) {
            Some(less) => self.retained[gpu] = less,
            None => {
                return self.wrong(ERROR_INVALID_CONTEXT, format!("GPU {gpu} is released more often than retained"));
            }
        }
        Ok(())
    }

    pub fn push(&mut self, context: usize) -> Answer<()> {
        if self.retained.get(context.wrapping_sub(PRIMARY)).is_none_or(|number| *number == 0) {
            return self.wrong(ERROR_INVALID_CONTEXT, format!("context {context:#x} is not retained"));
        }
        self.contexts.push(context);
        Ok(())
    }

    pub fn pop(&mut self) -> Answer<usize> {
        match self.contexts.pop() {
            Some(context) => Ok(context),
            None => self.wrong(ERROR_INVALID_CONTEXT, "there is no current context to pop".into()),
        }
    }

    /// The current context, which the library must have made current.
    fn current(&mut self) -> Answer<usize> {
        match self.contexts[..] {
            [_, .., current] => Ok(current),
            _ => self.wrong(ERROR_INVALID_CONTEXT, "the library uses the program's current context".into()),
        }
    }

    pub fn exchange_mode(&mut self, mode: c_int) -> Answer<c_int> {
        Ok(std::mem::replace(&mut self.mode, mode))
    }

    pub fn priorities(&mut self) -> Answer<(c_int, c_int)> {
        self.current().map(|_| (0, -5))
    }

    pub fn create_stream(&mut self, flags: c_uint, priority: c_int) -> Answer<usize> {
        let context = self.current()?;
        if flags != STREAM_NON_BLOCKING || priority != -5 {
            let what = format!("a stream with flags {flags} and priority {priority}, which waits for the program's");
            return self.wrong(ERROR_INVALID_VALUE, what);
        }
        let handle = self.handle();
        self.streams.streams.insert(handle, Stream { context, queue: Default::default() });
        Ok(handle)
    }

    /// Refuses a stream that is not there, or of another context than the current one.
    fn stream(&mut self, stream: usize) -> Answer<usize> {
        let current = self.current()?;
        match self.streams.streams.get(&stream) {
            Some(found) if found.context == current => Ok(current - PRIMARY),
            Some(_) => self.wrong(ERROR_INVALID_CONTEXT, "a stream of another context than the current one".into()),
            None => self.wrong(ERROR_INVALID_HANDLE, format!("there is no stream {stream:#x}")),
        }
    }

    pub fn destroy_stream(&mut self, stream: usize) -> Answer<()> {
        self.synchronize_stream(stream)?;
        self.streams.streams.remove(&stream);
        Ok(())
    }

    pub fn synchronize_stream(&mut self, stream: usize) -> Answer<()> {
        self.stream(stream)?;
        self.run_until(|state| state.streams.streams.get(&stream).is_none_or(|stream| stream.queue.is_empty()))
    }

    pub fn create_event(&mut self) -> Answer<usize> {
        let context = self.current()?;
        let handle = self.handle();
        self.streams.events.insert(handle, Event { context, recorded: 0, reached: 0 });
        Ok(handle)
    }

    /// Refuses an event that is not there, or of another context than the current one.
    fn event(&mut self, event: usize) -> Answer<&mut Event> {
        let current = self.current()?;
        if self.streams.events.get(&event).is_none_or(|event| event.context != current) {
            return self.wrong(ERROR_INVALID_HANDLE, format!("the current context has no event {event:#x}"));
        }
        self.streams.events.get_mut(&event).ok_or(ERROR_INVALID_HANDLE)
    }

    pub fn destroy_event(&mut self, event: usize) -> Answer<()> {
        self.event(event)?;
        self.streams.events.remove(&event);
        Ok(())
    }

    pub fn record_event(&mut self, event: usize, stream: usize) -> Answer<()> {
        self.stream(stream)?;
        let own = self.event(event)?;
        own.recorded += 1;
        let number = own.recorded;
        self.enqueue(stream, Operation::Record { event, number });
        Ok(())
    }

    #[cfg_attr(not(test), allow(dead_code))]
    pub fn wait_event(&mut self, stream: usize, event: usize) -> Answer<()> {
        self.stream(stream)?;
        let number = self.event(event)?.recorded;
        self.enqueue(stream, Operation::Wait { event, number });
        Ok(())
    }

    pub fn synchronize_event(&mut self, event: usize) -> Answer<()> {
        let number = self.event(event)?.recorded;
        self.run_until(|state| state.streams.events.get(&event).is_none_or(|event| event.reached >= number))
    }

    pub fn allocate_pinned(&mut self, bytes: usize) -> Answer<u64> {
        self.current()?;
        if bytes == 0 {
            return self.wrong(ERROR_INVALID_VALUE, "pinned memory of no bytes".into());
        }
        Ok(self.memory.allocate(Kind::Pinned, bytes, true))
    }

    pub fn free_pinned(&mut self, address: u64) -> Answer<()> {
        self.current()?;
        if !self.memory.allocations.get(&address).is_some_and(|found| found.kind == Kind::Pinned) {
            return self.wrong(ERROR_INVALID_VALUE, format!("{address:#x} is not pinned memory"));
        }
        self.check_unused(address);
        self.memory.free(address);
        Ok(())
    }

    /// Copies between pageable memory of the host and a GPU are done, or their bytes are taken, before the function
    /// returns; all others are done at any time.
    pub fn copy(&mut self, into: u64, from: u64, bytes: usize, stream: usize) -> Answer<()> {
        self.stream(stream)?;
        let ends = [into, from].map(|address| self.memory.find(address).map(|(_, found)| found.kind));
        for (address, kind) in [into, from].into_iter().zip(ends) {
            if kind.is_some() && self.memory.bytes(address, bytes).is_none() {
                let what = format!("a copy of {bytes} bytes at {address:#x} goes past the end of its memory");
                return self.wrong(ERROR_INVALID_VALUE, what);
            }
        }
        let [into_kind, from_kind] = ends;
        let source = match from_kind {
            Some(_) => Source::Address(from),
            None => {
                let memory = std::ptr::with_exposed_provenance::<u8>(from as usize);
                // SAFETY: the caller promises memory of the host with these bytes.
                Source::Staged(unsafe { std::slice::from_raw_parts(memory, bytes) }.to_vec())
            }
        };
        self.enqueue(stream, Operation::Copy { into, from: source, bytes });
        if into_kind.is_none() { self.synchronize_stream(stream) } else { Ok(()) }
    }

    pub fn load_module(&mut self, text: &str) -> Answer<usize> {
        let context = self.current()?;
        if text != PTX {
            return self.wrong(ERROR_INVALID_VALUE, "another module than the library's".into());
        }
        if self.version < 12010 {
            return Err(ERROR_UNSUPPORTED_PTX_VERSION);
        }
        let handle = self.handle();
        self.modules.insert(handle, context);
        Ok(handle)
    }

    pub fn unload_module(&mut self, module: usize) -> Answer<()> {
        let current = self.current()?;
        match self.modules.remove(&module) {
            Some(context) if context == current => Ok(()),
            _ => self.wrong(ERROR_INVALID_HANDLE, format!("the current context has no module {module:#x}")),
        }
    }

    pub fn function(&mut self, module: usize, name: &str) -> Answer<usize> {
        self.current()?;
        if !self.modules.contains_key(&module) {
            return self.wrong(ERROR_INVALID_HANDLE, format!("there is no module {module:#x}"));
        }
        if KERNELS.kernel(name).is_none() {
            return self.wrong(ERROR_NOT_FOUND, format!("there is no kernel {name:?}"));
        }
        let handle = self.handle();
        self.functions.insert(handle, (module, name.to_owned()));
        Ok(handle)
    }

    /// `parameters` returns the bytes of a parameter with its number and its length.
    pub fn launch(
        &mut self,
        function: usize,
        geometry: [c_uint; 6],
        shared_bytes: c_uint,
        stream: usize,
        parameters: impl Fn(usize, usize) -> Vec<u8>,
    ) -> Answer<()> {
        let current = self.current()?;
        self.stream(stream)?;
        let found = self.functions.get(&function).filter(|(module, _)| self.modules.get(module) == Some(&current));
        let Some((_, name)) = found.cloned() else {
            return self.wrong(ERROR_INVALID_HANDLE, format!("the current context has no function {function:#x}"));
        };
        let kernel = KERNELS.kernel(&name).ok_or(ERROR_NOT_FOUND)?;
        let [blocks, 1, 1, threads, 1, 1] = geometry else {
            return self.wrong(ERROR_INVALID_VALUE, format!("{name} is launched with {geometry:?}"));
        };
        if blocks == 0 || threads == 0 || threads > kernel.most_threads || shared_bytes > 0 {
            return self.wrong(ERROR_INVALID_VALUE, format!("{name}: {blocks} blocks of {threads} threads"));
        }
        let each = kernel.parameters.iter().enumerate();
        let parameters = each.flat_map(|(index, bytes)| parameters(index, *bytes)).collect();
        self.enqueue(stream, Operation::Launch { kernel: name, geometry: Geometry { blocks, threads }, parameters });
        Ok(())
    }
}
