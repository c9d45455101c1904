//! Calls whose buffers the host cannot access, or may not use as they are: the library's buffers take the place of the
//! caller's, the call is the same call on these, and what it reads and writes is copied before and after it.
//!
//! - A buffer in the memory of a GPU has one in pinned memory. Copies are made by the GPU, on a stream of the library.
//! - Several inputs of one reduction in the memory of one GPU have one buffer, into which a kernel of the GPU reduces
//!   them. Several outputs with the same result, in the memory of one GPU, have one as well.
//! - An output that is a part of the input has a buffer of its own, since schedules are verified only for outputs that
//!   are disjoint from the inputs.
//! - With a factor, inputs have buffers for their products. So have those of a call in place, which is one out of place
//!   then: a call that is refused leaves the caller's buffers as they are.

use std::ops::Range;
use std::sync::Arc;

use crate::collective::{Collective, Order, Shape};
use crate::context::Context;
use crate::context::call::{Call, Reduction};
use crate::cuda::driver::Driver;
use crate::cuda::gpu::{Gpu, Task};
use crate::cuda::gpus::{Gpus, Work};
use crate::cuda::kernels::{Kernel, MAX_INPUTS};
use crate::cuda::pinned::Pinned;
use crate::engine::scratch::Scratch;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{self, Memory};
use crate::reduce::Factor;
use crate::reserve::try_zeros;
use crate::types::{ElementType, ReduceOp};

/// The library's buffers for a call, and what is copied.
pub(super) struct Staging {
    /// Those of the call on the host, of which some are the caller's.
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    gpus: Option<Arc<Gpus>>,
    /// What GPUs do before and after the call.
    before: Vec<Work>,
    after: Vec<Work>,
    /// An output on the host that is a part of the input, and where it belongs.
    own_block: Option<OwnBlock>,
    /// What the host multiplies before the call.
    products: Vec<Product>,
    /// Keeps the buffers.
    _pinned: Vec<Pinned>,
    memory: Vec<Scratch>,
}

/// `into` = the `count` elements of `from`, multiplied.
struct Product {
    factor: Factor,
    into: *mut u8,
    from: *const u8,
    count: usize,
}

struct OwnBlock {
    memory: Vec<u128>,
    output: *mut u8,
    bytes: usize,
}

// SAFETY: whoever uses the pointers guarantees that the memory may be used then, on whichever thread.
unsafe impl Send for Staging {}
// SAFETY: as above.
unsafe impl Sync for Staging {}

impl Staging {
    /// `call` on the host.
    pub fn call<'a>(&'a self, call: &Call<'a>) -> Call<'a> {
        let (inputs, outputs) = (&self.inputs[..], &self.outputs[..]);
        let mut shape = call.shape;
        if !shape.blocks {
            (shape.inputs, shape.outputs) = (inputs.len(), outputs.len());
        }
        Call { shape, inputs, outputs, memory: Memory::Host, own_block: false, factor: None, ..*call }
    }

    /// Whether the host does everything at once that there is to do.
    pub fn is_quick(&self) -> bool {
        self.before.is_empty() && self.after.is_empty() && self.products.is_empty()
    }

    /// Copies what the call reads, and multiplies it.
    ///
    /// # Safety
    /// The caller's buffers are valid, and nobody accesses them in a conflicting way.
    pub unsafe fn copy_in(&self) -> Result<()> {
        // SAFETY: by the contract; the library's buffers are this call's.
        unsafe { self.run(&self.before) }.map_err(|error| error.context("before the call"))?;
        for Product { factor, into, from, count } in &self.products {
            // SAFETY: by the contract, `from` is valid for as many elements, or the library's, as `into` is.
            unsafe { factor.multiply(*into, *from, *count) };
        }
        Ok(())
    }

    /// Copies what the call has written.
    ///
    /// # Safety
    /// The call has ended. The caller's buffers are valid, and nobody accesses them in a conflicting way.
    pub unsafe fn copy_out(&self) -> Result<()> {
        // SAFETY: by the contract.
        unsafe {
            self.copy_own_block();
            self.run(&self.after).map_err(|error| error.context("after the call"))
        }
    }

    /// Copies an output that is a part of the input to where it belongs.
    ///
    /// # Safety
    /// The call has ended. The caller's output is valid for writes, and nobody else accesses it.
    pub unsafe fn copy_own_block(&self) {
        if let Some(OwnBlock { memory, output, bytes }) = &self.own_block {
            // SAFETY: by the contract, the output is valid for writes. `memory` has at least `bytes`, and the library
            // has allocated it, so the two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr().cast(), *output, *bytes) };
        }
    }

    /// # Safety
    /// The memory of the work may be used.
    unsafe fn run(&self, works: &[Work]) -> Result<()> {
        // SAFETY: by the contract.
        self.gpus.as_ref().map_or(Ok(()), |gpus| unsafe { gpus.run(works) })
    }
}

impl Call<'_> {
    /// The kernel by which a GPU reduces several inputs. Averages depend on the number of inputs, which must not
    /// change.
    pub(super) fn kernel(&self, usual: Order) -> Option<Kernel> {
        match (self.reduction, self.dtype) {
            // The sum of some inputs would be rounded.
            _ if !matches!(self.order(usual), Ok(Order::Any | Order::Ranks)) => None,
            // Products are rounded before they are combined.
            _ if self.factor.is_some() => None,
            (Reduction::Op(op), ElementType::Known(dtype)) if op != ReduceOp::Average => {
                Kernel::reduction(dtype, op).filter(|_| self.shape.collective.reduces())
            }
            _ => None,
        }
    }
}

/// A buffer, in errors.
fn name(kind: &str, index: usize, pointer: *const u8) -> String {
    format!("{kind} {index} ({pointer:p})")
}

/// A buffer of the caller.
struct Buffer {
    pointer: *mut u8,
    /// The GPU in whose memory it is, if it is.
    gpu: Option<Arc<Gpu>>,
    name: String,
}

impl Context {
    /// Whether the library's buffers must take the place of some of the caller's.
    #[inline]
    pub(super) fn is_staged(&self, call: &Call<'_>) -> Result<bool> {
        match call.memory {
            _ if call.own_block || call.factor.is_some() => Ok(true),
            Memory::Host => Ok(false),
            Memory::Device => Ok(!call.inputs.is_empty() || !call.outputs.is_empty()),
            Memory::Auto => {
                let buffers = call.inputs.iter().copied().chain(call.outputs.iter().map(|output| output.cast_const()));
                for buffer in buffers {
                    if memory::is_device(buffer).map_err(|error| self.fail_staged(&self.text_of(call), &error))? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// The library's buffers for `call`. The caller must keep the call's buffers as long as they are used.
    #[cold]
    pub(super) fn stage(&self, call: &Call<'_>) -> Result<Staging> {
        self.check_process()?;
        let staging = self.try_stage(call);
        // What nobody can do is refused before anything is sent, as other wrong calls are.
        let is_refused = |error: &Error| matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument);
        staging.map_err(|error| if is_refused(&error) { error } else { self.fail_staged(&self.text_of(call), &error) })
    }

    fn try_stage(&self, call: &Call<'_>) -> Result<Staging> {
        let contributions: Vec<*const u8> = call.outputs.iter().map(|output| output.cast_const()).collect();
        let call = &match call.factor {
            Some(_) if call.shape.inputs == 0 => {
                let shape = Shape { inputs: contributions.len(), ..call.shape };
                Call { shape, inputs: &contributions, ..*call }
            }
            _ => *call,
        };
        let (shape, element) = (&call.shape, call.element());
        let buffer = |kind: &str, index: usize, pointer: *mut u8, len: usize| {
            let name = name(kind, index, pointer);
            let gpu = self.gpu_of(call.memory, pointer, len).map_err(|error| error.context(&name))?;
            Ok(Buffer { pointer, gpu, name })
        };
        let inputs = call.inputs.iter().enumerate();
        let inputs = inputs.map(|(n, input)| buffer("input", n, input.cast_mut(), shape.input_buffer_len(n)));
        let inputs: Vec<Buffer> = inputs.collect::<Result<_>>()?;
        let outputs = call.outputs.iter().enumerate();
        let outputs = outputs.map(|(n, output)| buffer("output", n, *output, shape.output_buffer_len(n)));
        let outputs: Vec<Buffer> = outputs.collect::<Result<_>>()?;
        if let Some(buffer) = inputs.iter().chain(&outputs).find(|buffer| shape.blocks && buffer.gpu.is_some()) {
            let text = "blocks are in the memory of a GPU: pass one buffer for all of them";
            return Err(Error::new(ErrorKind::Unsupported, text).context(&buffer.name));
        }
        let kernel = call.kernel(self.options.order);
        let mut staging = Staging {
            inputs: Vec::new(),
            outputs: Vec::new(),
            gpus: self.gpus.get().cloned(),
            before: Vec::new(),
            after: Vec::new(),
            own_block: None,
            products: Vec::new(),
            _pinned: Vec::new(),
            memory: Vec::new(),
        };
        let reduces = |buffer: &Buffer| kernel.is_some() && buffer.gpu.as_ref().is_some_and(|gpu| gpu.takes_kernels());
        for (index, members) in groups(&inputs, reduces).into_iter().enumerate() {
            // Inputs that share a buffer have the same length.
            let len = shape.input_buffer_len(index);
            let bytes = len * element;
            let pointer = staging.pinned(&members, bytes)?;
            let from = pointer.unwrap_or(members[0].pointer);
            let into = match (call.factor, pointer) {
                (Some(_), None) if bytes > 0 => self.product_memory(&mut staging, bytes)?,
                _ => from,
            };
            staging.inputs.push(into);
            if let Some(factor) = call.factor {
                staging.products.push(Product { factor, into, from, count: len });
            }
            if let Some(pointer) = pointer {
                staging.gather(&members, pointer, 0..bytes, kernel.map(|kernel| (kernel, len)));
            }
        }
        let is_in_place = shape.inputs == 0;
        let is_common = |buffer: &Buffer| match shape.collective {
            Collective::Allreduce if is_in_place => reduces(buffer),
            collective => matches!(collective, Collective::Allreduce | Collective::Broadcast),
        };
        for (index, members) in groups(&outputs, is_common).into_iter().enumerate() {
            let bytes = shape.output_len(0) * element;
            let pointer = staging.pinned(&members, bytes)?;
            staging.outputs.push(pointer.unwrap_or(members[0].pointer));
            let Some(pointer) = pointer else { continue };
            let [read, written] =
                [read(shape, index), written(shape, index)].map(|range| range.start * element..range.end * element);
            let combine = kernel.filter(|_| shape.collective == Collective::Allreduce);
            let contributors = if shape.collective == Collective::Allreduce { &members[..] } else { &members[..1] };
            staging.gather(contributors, pointer, read, combine.map(|kernel| (kernel, shape.output_len(0))));
            staging.distribute(&members, pointer, written, bytes);
        }
        // The inputs with products are the library's.
        let is_part = call.own_block && call.factor.is_none();
        if is_part && outputs.iter().all(|output| output.gpu.is_none()) {
            let (output, bytes) = (call.outputs[0], shape.output_len(0) * element);
            let words = bytes.div_ceil(size_of::<u128>());
            let mut memory = try_zeros::<u128>(words, "an output that is a part of the input")?;
            staging.outputs[0] = memory.as_mut_ptr().cast();
            staging.own_block = Some(OwnBlock { memory, output, bytes });
        }
        Ok(staging)
    }

    /// Memory for the products of an input of `bytes`.
    fn product_memory(&self, staging: &mut Staging, bytes: usize) -> Result<*mut u8> {
        let mut guard = self.lock()?;
        let pointer = guard.take_scratch(bytes, &mut staging.memory);
        pointer.ok_or_else(|| {
            let text = format!("no memory for {bytes} bytes, an input times its factor");
            Error::new(ErrorKind::ResourceExhausted, text)
        })
    }

    /// Keeps the memory of a `staging` that is used no more for later calls.
    pub(super) fn unstage(&self, staging: Staging) {
        if !staging.memory.is_empty()
            && let Ok(mut guard) = self.lock()
        {
            guard.return_scratch(staging.memory);
        }
    }

    /// The GPU in whose memory a buffer is; `None` if the host accesses it.
    fn gpu_of(&self, memory: Memory, pointer: *const u8, len: usize) -> Result<Option<Arc<Gpu>>> {
        let is_device = match memory {
            // Never accessed.
            _ if len == 0 => false,
            Memory::Auto => memory::is_device(pointer)?,
            Memory::Host => false,
            Memory::Device => true,
        };
        if !is_device {
            return Ok(None);
        }
        let gpus = match self.gpus.get() {
            Some(gpus) => gpus,
            None => {
                let driver = Driver::loaded().map_err(|error| error.context("memory of a CUDA device"))?;
                self.gpus.get_or_init(|| Arc::new(Gpus::new(driver)))
            }
        };
        gpus.of(pointer.addr() as u64).map(Some)
    }

    /// From now on, this driver takes the place of the one that the process has loaded.
    #[cfg(test)]
    pub(crate) fn set_driver(&self, driver: Arc<Driver>) {
        assert!(self.gpus.set(Arc::new(Gpus::new(driver))).is_ok(), "it is set before the first call");
    }

    /// The error of a call that has failed because of a GPU. The context is broken, and other ranks, which wait for
    /// this one, are sent the reason.
    #[cold]
    pub(super) fn fail_staged(&self, (text, operation): &(String, &'static str), error: &Error) -> Error {
        let error = error.context(text).during(operation);
        if let Ok(mut guard) = self.lock() {
            let reason = guard.broken.clone().unwrap_or_else(|| error.clone());
            guard.break_with(&error, Some(&reason));
            self.finish_closing(guard);
        }
        error
    }

    /// A call in errors, before its algorithm is selected; and the name of the collective.
    pub(super) fn text_of(&self, call: &Call<'_>) -> (String, &'static str) {
        let (collective, count) = (call.shape.collective.name(), call.count(self.rank));
        let bytes = count.saturating_mul(call.element());
        let text =
            format!("rank {}: {collective} of {count} {} ({bytes} bytes), tag {}", self.rank, call.dtype, call.tag);
        (text, collective)
    }
}

/// Buffers that share one of the library's: those in the memory of one GPU, if they `may`. All others are alone.
fn groups(buffers: &[Buffer], may: impl Fn(&Buffer) -> bool) -> Vec<Vec<&Buffer>> {
    let mut groups: Vec<Vec<&Buffer>> = Vec::new();
    for buffer in buffers {
        let is_same = |group: &&mut Vec<&Buffer>| match (&group[0].gpu, &buffer.gpu) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) && may(buffer),
            _ => false,
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(buffer),
            None => groups.push(vec![buffer]),
        }
    }
    groups
}

impl Staging {
    /// Pinned memory for buffers in the memory of a GPU; `None` for a buffer that the host accesses.
    fn pinned(&mut self, members: &[&Buffer], bytes: usize) -> Result<Option<*mut u8>> {
        let Some(gpu) = &members[0].gpu else { return Ok(None) };
        let Some(gpus) = &self.gpus else { return Ok(None) };
        let pinned = gpus.pinned(gpu, bytes).map_err(|error| error.context(&members[0].name))?;
        let pointer = pinned.pointer();
        self._pinned.push(pinned);
        Ok(Some(pointer))
    }

    /// Before the call, makes the bytes `range` of a buffer those of the only member, or the whole buffer the result of
    /// the kernel on all members, which have so many elements.
    fn gather(&mut self, members: &[&Buffer], into: *mut u8, range: Range<usize>, kernel: Option<(Kernel, usize)>) {
        let Some(gpu) = &members[0].gpu else { return };
        let address = into.addr() as u64;
        if range.is_empty() {
            return;
        }
        let (1.., Some((kernel, count))) = (members.len() - 1, kernel) else {
            let Buffer { pointer, name, .. } = members[0];
            let (bytes, offset) = (range.len(), range.start as u64);
            let task = Task::Copy { into: address + offset, from: pointer.addr() as u64 + offset, bytes };
            let what = format!("copying {bytes} bytes of {name} from GPU {}", gpu.ordinal());
            self.before.push(Work { gpu: gpu.clone(), task, what });
            return;
        };
        let mut sources: Vec<u64> = members.iter().map(|member| member.pointer.addr() as u64).collect();
        let bytes = range.len();
        while !sources.is_empty() {
            let rest = sources.split_off(sources.len().min(MAX_INPUTS));
            let arguments = kernel.reduce(address, &sources, count);
            let what = format!("reducing {} buffers of {bytes} bytes on GPU {}", members.len(), gpu.ordinal());
            self.before.push(Work { gpu: gpu.clone(), task: Task::Launch { kernel, arguments, bytes }, what });
            // The next launch goes on with the result of this one.
            sources = if rest.is_empty() { rest } else { [vec![address], rest].concat() };
        }
    }

    /// After the call, makes the bytes `written` of the first member those of a buffer, and all bytes of the others
    /// those of the first.
    fn distribute(&mut self, members: &[&Buffer], from: *mut u8, written: Range<usize>, bytes: usize) {
        let (first, others) = (members[0], &members[1..]);
        let Some(gpu) = &first.gpu else { return };
        let mut copy = |into: &Buffer, from: *mut u8, range: Range<usize>, source: &str| {
            let (bytes, offset) = (range.len(), range.start as u64);
            let [into_address, from] = [into.pointer, from].map(|pointer| pointer.addr() as u64 + offset);
            let what = format!("copying {bytes} bytes from {source} to {} on GPU {}", into.name, gpu.ordinal());
            self.after.push(Work { gpu: gpu.clone(), task: Task::Copy { into: into_address, from, bytes }, what });
        };
        if !written.is_empty() {
            copy(first, from, written, "the host");
        }
        others.iter().for_each(|other| copy(other, first.pointer, 0..bytes, &first.name));
    }
}

/// The elements of an output that the call reads: those of a call in place.
fn read(shape: &Shape<'_>, output: usize) -> Range<usize> {
    use Collective::*;
    let Shape { rank, count, .. } = *shape;
    let is_root = rank == shape.root;
    let block = |counts: &[usize]| {
        let start = counts.iter().take(rank).sum();
        start..start + counts.get(rank).copied().unwrap_or(0)
    };
    let all = 0..shape.output_len(output);
    match shape.collective {
        _ if shape.inputs > 0 => 0..0,
        Allreduce | Reduce | ReduceScatter | Scan | Exscan | Alltoall => all,
        Broadcast if is_root && output == 0 => all,
        Scatter | Scatterv if is_root => all,
        Allgather | Gather => rank * count..(rank + 1) * count,
        Allgatherv | Gatherv => block(shape.recv_counts),
        Broadcast | Scatter | Scatterv | Alltoallv | Barrier | PairwiseExchange => 0..0,
    }
}

/// The elements of an output that the call writes. Others have no result.
fn written(shape: &Shape<'_>, output: usize) -> Range<usize> {
    use Collective::*;
    let is_root = shape.rank == shape.root;
    let own = |counts: &[usize]| 0..counts.get(shape.rank).copied().unwrap_or(0);
    match shape.collective {
        Reduce if !is_root => 0..0,
        Broadcast if is_root && shape.inputs == 0 && output == 0 => 0..0,
        Exscan if shape.rank == 0 => 0..0,
        ReduceScatter => own(shape.recv_counts),
        Scatter => 0..shape.count,
        Scatterv if is_root => own(shape.send_counts),
        _ => 0..shape.output_len(output),
    }
}
