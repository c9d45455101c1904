//! Conversions between 16-bit floats and `f32`, without branches so that compilers vectorise them, and without arithmetic
//! on subnormal `f32`s, which a thread may have set to be flushed to zero.

/// The value of a binary16, exactly; a NaN stays one.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7FFF);
    let sign = u32::from(half & 0x8000) << 16;
    // Subnormals count in units of 2^-24.
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    // The exponent's bias grows from 15 to 127; infinities and NaNs go from exponent 31 to 255.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let special = (magnitude << 13) | (255 << 23);
    let number = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude < 0x7C00 { number } else { special })
}

/// The nearest binary16, ties to even; any NaN becomes `0x7E00`.
#[inline(always)]
pub(super) fn f32_to_f16(value: f32) -> u16 {
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    let sign = (value.to_bits() >> 16) & 0x8000;
    // Between 0.5 and 1 an f32 counts in units of 2^-24, as a subnormal binary16 does: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let normal = ((magnitude + 0x0FFF + ((magnitude >> 13) & 1)) >> 13).wrapping_sub((127 - 15) << 10);
    let number = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    // From 65536 on all is infinite; just below, the rounding has carried into the exponent.
    let number = if magnitude < (127 + 16) << 23 { number } else { 0x7C00 };
    (if magnitude > 255 << 23 { 0x7E00 } else { sign | number }) as u16
}

/// The value of a bfloat16, exactly; a NaN stays one.
#[inline(always)]
pub(super) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The nearest bfloat16, ties to even; any NaN becomes `0x7FC0`.
#[inline(always)]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // Wraps for NaNs only.
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    (if bits & 0x7FFF_FFFF > 255 << 23 { 0x7FC0 } else { rounded }) as u16
}
