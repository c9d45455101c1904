//! Checks of a collective's buffers against its shape.

use crate::collective::{Collective, Shape};
use crate::error::{Error, Result};
use crate::ffi::pointer::check_range;
use crate::types::DataType;

/// What checking found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    /// The inputs are the very outputs, and the collective has a form in place for that.
    pub(super) in_place: bool,
    /// Some buffer without elements is NULL.
    pub(super) has_null: bool,
}

/// Refuses NULL, misaligned and impossible buffers, and outputs that overlap anything. Inputs that are the very outputs make
/// a call in place, where the collective has that form for the same lengths. `shape` has passed its own check.
pub(super) fn check(shape: &Shape<'_>, dtype: DataType, inputs: &[*const u8], outputs: &[*mut u8]) -> Result<Checked> {
    let in_place = is_in_place(shape, inputs, outputs);
    let inputs = if in_place { &[] } else { inputs };
    let input = |index: usize| Range::new(false, index, inputs[index], shape.input_len(index), dtype);
    let output = |index: usize| Range::new(true, index, outputs[index], shape.output_len(index), dtype);
    match (inputs.len(), outputs.len()) {
        // Most calls: no memory is needed for these.
        (0, 1) => drop(output(0)?),
        (1, 1) => input(0)?.check_apart(&output(0)?)?,
        (n, m) => check_many((0..n).map(input).chain((0..m).map(output)).collect::<Result<_>>()?)?,
    }
    let has_null = inputs.iter().any(|input| input.is_null()) || outputs.iter().any(|output| output.is_null());
    Ok(Checked { in_place, has_null })
}

/// Whether the caller meant in place by passing the same pointers twice.
fn is_in_place(shape: &Shape<'_>, inputs: &[*const u8], outputs: &[*mut u8]) -> bool {
    // A broadcast sends the first output, and may have more.
    let same_number = inputs.len() == outputs.len() || shape.collective == Collective::Broadcast;
    if inputs.is_empty() || !same_number || !inputs.iter().zip(outputs).all(|(i, o)| i.cast_mut() == *o) {
        return false;
    }
    let in_place = Shape { inputs: 0, ..*shape };
    let same_len = shape.input_len(0) == shape.output_len(0) && shape.output_len(0) == in_place.output_len(0);
    same_len && !outputs.is_empty() && in_place.check().is_ok()
}

/// A buffer: where it begins and ends, and what to call it.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
    output: bool,
    index: usize,
}

impl Range {
    fn new(output: bool, index: usize, pointer: *const u8, len: usize, dtype: DataType) -> Result<Self> {
        let kind = kind(output);
        let bytes = len.checked_mul(dtype.size());
        let bytes =
            bytes.ok_or_else(|| Error::invalid(format!("{kind} {index} cannot have {len} elements of {dtype}")))?;
        check_range(pointer, bytes, format_args!("{kind} {index}"))?;
        let (start, align) = (pointer as usize, dtype.align());
        if bytes > 0 && start & (align - 1) != 0 {
            return Err(Error::invalid(format!(
                "{kind} {index} ({pointer:p}) is not aligned to the {align} bytes of {dtype}"
            )));
        }
        Ok(Self { start, end: start + bytes, output, index })
    }

    /// Refuses two buffers that share bytes, unless both are only read.
    fn check_apart(&self, other: &Self) -> Result<()> {
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

/// [`Range::check_apart`] for each two of many.
fn check_many(mut ranges: Vec<Range>) -> Result<()> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    // Of the ranges so far, the one that reaches farthest: of all, and of the outputs.
    let (mut any, mut output): (Option<Range>, Option<Range>) = (None, None);
    for range in ranges {
        if let Some(before) = if range.output { any } else { output } {
            before.check_apart(&range)?;
        }
        let farther = |so_far: Option<Range>| so_far.filter(|so_far| so_far.end >= range.end).or(Some(range));
        any = farther(any);
        if range.output {
            output = farther(output);
        }
    }
    Ok(())
}

/// The same pointers, with dangling ones, aligned for every type, for those that are NULL.
pub(super) fn without_null(inputs: &[*const u8], outputs: &[*mut u8]) -> (Vec<*const u8>, Vec<*mut u8>) {
    let dangling = std::ptr::dangling_mut::<u128>().cast::<u8>();
    let input = |pointer: &*const u8| if pointer.is_null() { dangling.cast_const() } else { *pointer };
    let output = |pointer: &*mut u8| if pointer.is_null() { dangling } else { *pointer };
    (inputs.iter().map(input).collect(), outputs.iter().map(output).collect())
}

#[cfg(test)]
#[path = "buffers_tests.rs"]
mod tests;
