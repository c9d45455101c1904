//! Checks of a collective's buffers against its shape.

use crate::collective::{Collective, Shape};
use crate::context::Call;
use crate::error::{Error, Result};
use crate::ffi::pointer::check_range;
use crate::memory;
use crate::reserve::{try_collect, try_with_capacity};
use crate::types::{DataType, ElementType};

/// How the inputs are placed relative to the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The buffers are disjoint, or else the call is refused; or there are no inputs.
    OutOfPlace,
    /// In place: the outputs hold the inputs, where the collective expects them.
    InPlace,
    /// The output is this rank's block of the input.
    OwnBlock,
}

/// The form that equal pointers select. The shape need not have passed its check.
pub(super) fn form(call: &Call<'_>) -> Form {
    use Collective::*;
    let Call { ref shape, dtype, inputs, outputs, .. } = *call;
    let (Some(input), Some(output)) = (inputs.first(), outputs.first()) else { return Form::OutOfPlace };
    let lone = (inputs.len(), outputs.len()) == (1, 1);
    match shape.collective {
        Allreduce | Reduce | Alltoall | Scan | Exscan => {
            let same = inputs.len() == outputs.len() && inputs.iter().zip(outputs).all(|(i, o)| i.cast_mut() == *o);
            if same { Form::InPlace } else { Form::OutOfPlace }
        }
        // The first output is sent; there may be more.
        Broadcast if inputs.len() == 1 && input.cast_mut() == *output => Form::InPlace,
        Allgather | Allgatherv | Gather | Gatherv if shape.blocks => {
            let own = outputs.get(shape.rank).filter(|own| inputs.len() == 1 && own.cast_const() == *input);
            if own.is_some() { Form::InPlace } else { Form::OutOfPlace }
        }
        ReduceScatter | Scatter | Scatterv if shape.blocks => {
            let own = inputs.get(shape.rank).filter(|own| outputs.len() == 1 && **own == output.cast_const());
            if own.is_some() { Form::OwnBlock } else { Form::OutOfPlace }
        }
        Allgather | Allgatherv | Gather | Gatherv if lone && is_own_block(shape, dtype, *output, *input) => {
            Form::InPlace
        }
        ReduceScatter | Scatter | Scatterv if lone && is_own_block(shape, dtype, *input, *output) => Form::OwnBlock,
        _ => Form::OutOfPlace,
    }
}

/// Whether `block` is the position of this rank's block in `whole`, which has one block per rank.
fn is_own_block(shape: &Shape<'_>, dtype: ElementType, whole: *const u8, block: *const u8) -> bool {
    let before = |counts: &[usize]| counts.iter().take(shape.rank).fold(0, |sum: usize, n| sum.wrapping_add(*n));
    let before = match shape.collective {
        Collective::Scatterv => before(shape.send_counts),
        Collective::ReduceScatter | Collective::Allgatherv | Collective::Gatherv => before(shape.recv_counts),
        _ => shape.count.wrapping_mul(shape.rank),
    };
    whole.wrapping_add(before.wrapping_mul(dtype.size())) == block
}

/// Refuses NULL, misaligned and impossible buffers, and outputs that overlap another buffer, except where `form` allows
/// it. The shape has passed its own check; it has no inputs if the call is in place. Returns whether a buffer without
/// elements is NULL.
pub(super) fn check(call: &Call<'_>, form: Form) -> Result<bool> {
    let Call { ref shape, dtype, inputs, outputs, .. } = *call;
    // A block of the input is checked as part of the input.
    let outputs = if form == Form::OwnBlock { &[] } else { outputs };
    let input = |index: usize| Range::new(false, index, inputs[index], shape.input_buffer_len(index), dtype);
    let output = |index: usize| Range::new(true, index, outputs[index], shape.output_buffer_len(index), dtype);
    match (inputs.len(), outputs.len()) {
        // Most calls: no memory is needed for these.
        (0, 1) => drop(output(0)?),
        (1, 0) => drop(input(0)?),
        (1, 1) => input(0)?.check_disjoint(&output(0)?)?,
        (n, m) => {
            let mut ranges = try_with_capacity(n + m, "a list of buffers")?;
            (0..n).map(input).chain((0..m).map(output)).try_for_each(|range| range.map(|range| ranges.push(range)))?;
            check_many(ranges)?;
        }
    }
    Ok(inputs.iter().any(|input| input.is_null()) || outputs.iter().any(|output| output.is_null()))
}

/// Like [`check`], for the two buffers of a reduction on this rank only, which may be equal.
pub(super) fn check_local(input: *const u8, inout: *const u8, count: usize, dtype: DataType) -> Result<()> {
    let input_range = Range::new(false, 0, input, count, dtype.into())?;
    let inout_range = Range::new(true, 0, inout, count, dtype.into())?;
    for (pointer, name) in [(input, "input"), (inout, "inout")] {
        if count > 0 {
            memory::check_host(pointer, || name.to_owned())?;
        }
    }
    if input == inout { Ok(()) } else { input_range.check_disjoint(&inout_range) }
}

/// A buffer's address range, and its name in errors.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
    output: bool,
    index: usize,
}

impl Range {
    fn new(output: bool, index: usize, pointer: *const u8, len: usize, dtype: ElementType) -> Result<Self> {
        let kind = kind(output);
        let bytes = len.checked_mul(dtype.size());
        let bytes = bytes.ok_or_else(|| {
            Error::invalid(format!("{kind} {index} of {len} elements of {dtype} exceeds the address space"))
        })?;
        check_range(pointer, bytes, format_args!("{kind} {index}"))?;
        let (start, align) = (pointer as usize, dtype.align());
        if bytes > 0 && start & (align - 1) != 0 {
            return Err(Error::invalid(format!(
                "{kind} {index} ({pointer:p}) is not aligned to the {align} bytes of {dtype}"
            )));
        }
        Ok(Self { start, end: start + bytes, output, index })
    }

    /// Refuses two buffers that share bytes, unless both are inputs.
    fn check_disjoint(&self, other: &Self) -> Result<()> {
        let shared = self.start.max(other.start) < self.end.min(other.end);
        if !shared || !(self.output || other.output) {
            return Ok(());
        }
        let text =
            |range: &Self| format!("{} {} ({:#x} to {:#x})", kind(range.output), range.index, range.start, range.end);
        Err(Error::invalid(format!("{} overlaps {}", text(self), text(other))))
    }
}

fn kind(output: bool) -> &'static str {
    if output { "output" } else { "input" }
}

/// [`Range::check_disjoint`] for each pair of many.
fn check_many(mut ranges: Vec<Range>) -> Result<()> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    // The range that reaches farthest so far, among all, and among the outputs.
    let (mut any, mut output): (Option<Range>, Option<Range>) = (None, None);
    for range in ranges {
        if let Some(before) = if range.output { any } else { output } {
            before.check_disjoint(&range)?;
        }
        let farther = |so_far: Option<Range>| so_far.filter(|so_far| so_far.end >= range.end).or(Some(range));
        any = farther(any);
        if range.output {
            output = farther(output);
        }
    }
    Ok(())
}

/// Returns the pointers with NULL replaced by dangling pointers that are aligned for every type.
pub(super) fn without_null(inputs: &[*const u8], outputs: &[*mut u8]) -> Result<(Vec<*const u8>, Vec<*mut u8>)> {
    const WHAT: &str = "a list of buffers";
    let dangling = std::ptr::dangling_mut::<u128>().cast::<u8>();
    let input = |pointer: &*const u8| if pointer.is_null() { dangling.cast_const() } else { *pointer };
    let output = |pointer: &*mut u8| if pointer.is_null() { dangling } else { *pointer };
    let inputs = try_collect(inputs.iter().map(|pointer| Ok(input(pointer))), WHAT)?;
    Ok((inputs, try_collect(outputs.iter().map(|pointer| Ok(output(pointer))), WHAT)?))
}

#[cfg(test)]
#[path = "buffers_tests.rs"]
mod tests;
