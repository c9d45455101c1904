//! Conversions between 16-bit floats and `f32`: without branches, so that compilers vectorise them, and without
//! arithmetic on subnormal `f32`s, because a thread may flush these to zero.

/// Converts a binary16 exactly; a NaN remains a NaN.
#[inline(always)]
pub(super) fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7FFF);
    let sign = u32::from(half & 0x8000) << 16;
    // Subnormals are multiples of 2^-24.
    let subnormal = (magnitude as i32 as f32 * f32::from_bits((127 - 24) << 23)).to_bits();
    // The exponent bias changes from 15 to 127; for infinities and NaNs the exponent changes from 31 to 255.
    let normal = (magnitude << 13) + ((127 - 15) << 23);
    let special = (magnitude << 13) | (255 << 23);
    let number = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | if magnitude < 0x7C00 { number } else { special })
}

/// Rounds to the nearest binary16, ties to even; every NaN becomes `0x7E00`.
#[inline(always)]
pub(super) fn f32_to_f16(value: f32) -> u16 {
    let magnitude = value.to_bits() & 0x7FFF_FFFF;
    let sign = (value.to_bits() >> 16) & 0x8000;
    // Between 0.5 and 1 the spacing of f32 is 2^-24, that of subnormal binary16: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let normal = ((magnitude + 0x0FFF + ((magnitude >> 13) & 1)) >> 13).wrapping_sub((127 - 15) << 10);
    let number = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    // From 65536 on the result is infinite; just below, rounding carries into the exponent of infinity.
    let number = if magnitude < (127 + 16) << 23 { number } else { 0x7C00 };
    (if magnitude > 255 << 23 { 0x7E00 } else { sign | number }) as u16
}

/// Converts a bfloat16 exactly; a NaN remains a NaN.
#[inline(always)]
pub(super) fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Rounds to the nearest bfloat16, ties to even; every NaN becomes `0x7FC0`.
#[inline(always)]
pub(super) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    // Wraps only for NaNs, which are replaced below.
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    (if bits & 0x7FFF_FFFF > 255 << 23 { 0x7FC0 } else { rounded }) as u16
}
