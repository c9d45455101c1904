//! Products of elements and one factor, by the kernel of the product: its second operand is a short list of equal
//! elements, which stays in the first-level cache.

use super::{Kernel, kernel};
use crate::types::{DataType, ReduceOp};

/// Bytes of the list.
const LIST_BYTES: usize = 2048;

/// Bytes of the longest element that may have a factor.
const MAX_BYTES: usize = 8;

#[repr(align(64))]
struct List([u8; LIST_BYTES]);

/// What each element is multiplied by: a float16, bfloat16, float32 or float64.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    product: Kernel,
    element: [u8; MAX_BYTES],
    /// Bytes of an element.
    size: usize,
}

impl Factor {
    /// The factor `element`, of which the first bytes are an element of `dtype`. `None` for other types than floats.
    pub fn new(dtype: DataType, element: [u8; MAX_BYTES]) -> Option<Self> {
        use DataType::*;
        let is_float = matches!(dtype, Float16 | Bfloat16 | Float32 | Float64);
        let product = kernel(dtype, ReduceOp::Product).filter(|_| is_float)?;
        Some(Self { product, element, size: dtype.size() })
    }

    /// `into[i] = from[i] * factor` for `count` elements, with the bits of a product of two elements.
    ///
    /// # Safety
    /// That of [`Kernel`], with `from` as the left operand.
    pub unsafe fn multiply(&self, into: *mut u8, from: *const u8, count: usize) {
        let step = (LIST_BYTES / self.size).min(count.max(1));
        let mut list = List([0; LIST_BYTES]);
        list.0[..step * self.size]
            .chunks_exact_mut(self.size)
            .for_each(|it| it.copy_from_slice(&self.element[..self.size]));
        for at in (0..count).step_by(step) {
            let (offset, len) = (at * self.size, step.min(count - at));
            // SAFETY: the caller guarantees `count` elements at both pointers, and the list has `step`, which is no
            // less than `len`.
            unsafe { (self.product)(into.add(offset), from.add(offset), list.0.as_ptr(), len) };
        }
    }
}
