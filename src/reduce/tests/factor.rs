//! Products with a factor, compared with the reference for two elements.

use super::super::Factor;
use super::*;

#[test]
fn a_factor_multiplies_as_a_product_of_two_does() {
    let mut random = Random(3);
    for dtype in [Float16, Bfloat16, Float32, Float64] {
        let (size, specials) = (dtype.size(), specials(dtype));
        // More than the list of equal elements has, in odd places, and in place.
        for (count, offset) in [(0, 0), (1, 1), (7, 3), (1023, 0), (1024, 5), (1025, 8), (3001, 0)] {
            let (from, by) = (random.elements(dtype, &specials, count), random.elements(dtype, &specials, 1));
            let mut element = [0xEE; 8];
            element[..size].copy_from_slice(&by);
            let factor = Factor::new(dtype, element).unwrap();
            let want: Vec<u8> =
                from.chunks(size).flat_map(|value| reference(dtype, ReduceOp::Product, value, &by)).collect();
            let mut buffers = [Buffer::new(&vec![0x5A; from.len()], offset), Buffer::new(&from, 2 * offset)];
            let [into, operand] = buffers.each_mut().map(Buffer::pointer);
            // SAFETY: both have `count` elements.
            unsafe { factor.multiply(into, operand, count) };
            assert!(buffers[0].content() == want && buffers[1].content() == from, "{count} {dtype} times {by:02X?}");
            // SAFETY: as above; the operands of a kernel may be its result.
            unsafe { factor.multiply(operand, operand, count) };
            assert!(buffers[1].content() == want, "{count} {dtype} times {by:02X?} in place");
        }
    }
}

#[test]
fn only_floats_have_factors() {
    for &dtype in DataType::ALL {
        let is_float = matches!(dtype, Float16 | Bfloat16 | Float32 | Float64);
        assert_eq!(Factor::new(dtype, [0; 8]).is_some(), is_float, "{dtype}");
    }
}
