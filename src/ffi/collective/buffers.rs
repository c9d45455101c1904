//! Checks of a collective's buffers against its shape.

use std::borrow::Cow;

use crate::collective::{Collective, Shape};
use crate::error::{Error, Result};
use crate::ffi::pointer::check_range;
use crate::types::DataType;

/// Checked buffers. Those without elements are not NULL either.
#[derive(Debug)]
pub(super) struct Buffers<'a> {
    /// Empty for a call in place.
    pub(super) inputs: Cow<'a, [*const u8]>,
    pub(super) outputs: Cow<'a, [*mut u8]>,
}

/// Refuses NULL, misaligned and impossible buffers, and outputs that overlap anything. Inputs that are the very outputs make
/// a call in place, where the collective has that form for the same lengths. `shape` has passed its own check.
pub(super) fn check<'a>(
    shape: &Shape<'_>,
    dtype: DataType,
    inputs: &'a [*const u8],
    outputs: &'a [*mut u8],
) -> Result<Buffers<'a>> {
    let inputs = if is_in_place(shape, inputs, outputs) { &[] } else { inputs };
    let mut ranges = Ranges::default();
    let mut null = false;
    for (index, &pointer) in inputs.iter().enumerate() {
        null |= pointer.is_null();
        ranges.add(range("input", index, pointer, shape.input_len(index), dtype)?);
    }
    for (index, &pointer) in outputs.iter().enumerate() {
        null |= pointer.is_null();
        ranges.add(range("output", index, pointer, shape.output_len(index), dtype)?);
    }
    ranges.check()?;
    if null {
        return Ok(without_null(inputs, outputs));
    }
    Ok(Buffers { inputs: inputs.into(), outputs: outputs.into() })
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

/// One buffer with elements: where it begins and ends, and what to call it.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
    kind: &'static str,
    index: usize,
}

impl Range {
    fn is_output(&self) -> bool {
        self.kind == "output"
    }
}

fn range(kind: &'static str, index: usize, pointer: *const u8, len: usize, dtype: DataType) -> Result<Range> {
    let bytes = len.checked_mul(dtype.size());
    let bytes = bytes.ok_or_else(|| Error::invalid(format!("{kind} {index} cannot have {len} elements of {dtype}")))?;
    check_range(pointer, bytes, format_args!("{kind} {index}"))?;
    let (start, align) = (pointer as usize, dtype.align());
    if bytes > 0 && start % align != 0 {
        return Err(Error::invalid(format!(
            "{kind} {index} ({pointer:p}) is not aligned to the {align} bytes of {dtype}"
        )));
    }
    Ok(Range { start, end: start + bytes, kind, index })
}

/// Finds overlaps. Calls with two buffers, most of all, need no memory for it.
#[derive(Default)]
struct Ranges {
    first: [Option<Range>; 2],
    more: Vec<Range>,
}

impl Ranges {
    fn add(&mut self, range: Range) {
        if range.start < range.end {
            match self.first.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(range),
                None => self.more.push(range),
            }
        }
    }

    fn check(mut self) -> Result<()> {
        if self.more.is_empty() {
            return match self.first {
                [Some(a), Some(b)] if a.start < b.end && b.start < a.end => refuse(&a, &b),
                _ => Ok(()),
            };
        }
        self.more.extend(self.first.into_iter().flatten());
        self.more.sort_unstable_by_key(|range| range.start);
        // Of the ranges so far, the one that reaches farthest: of all, and of the outputs.
        let (mut any, mut output): (Option<Range>, Option<Range>) = (None, None);
        for range in self.more {
            let before = if range.is_output() { any } else { output };
            if let Some(before) = before.filter(|before| range.start < before.end) {
                return refuse(&before, &range);
            }
            let farther = |so_far: Option<Range>| so_far.filter(|so_far| so_far.end >= range.end).or(Some(range));
            any = farther(any);
            if range.is_output() {
                output = farther(output);
            }
        }
        Ok(())
    }
}

fn refuse(a: &Range, b: &Range) -> Result<()> {
    if !a.is_output() && !b.is_output() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{} {} ({:#x} to {:#x}) overlaps {} {} ({:#x} to {:#x})",
        a.kind, a.index, a.start, a.end, b.kind, b.index, b.start, b.end
    )))
}

/// The same with aligned, dangling pointers for the NULL ones, which have no elements.
fn without_null<'a>(inputs: &[*const u8], outputs: &[*mut u8]) -> Buffers<'a> {
    let dangling = std::ptr::dangling_mut::<u128>().cast::<u8>();
    let input = |pointer: &*const u8| if pointer.is_null() { dangling.cast_const() } else { *pointer };
    let output = |pointer: &*mut u8| if pointer.is_null() { dangling } else { *pointer };
    Buffers {
        inputs: inputs.iter().map(input).collect::<Vec<_>>().into(),
        outputs: outputs.iter().map(output).collect::<Vec<_>>().into(),
    }
}

#[cfg(test)]
#[path = "buffers_tests.rs"]
mod tests;
