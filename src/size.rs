//! Numbers of bytes in human-readable form.

use crate::error::{Error, Result};

/// Parses a number of bytes: `4`, `64Ki`, `1Mi`, `2Gi` (powers of 1024), `64K`, `1M`, `2G` (powers of 1000); a `B` may
/// follow.
pub fn parse(text: &str) -> Result<usize> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let unit: usize = match suffix.strip_suffix('B').unwrap_or(suffix) {
        "" => 1,
        "K" | "k" => 1000,
        "M" => 1000 * 1000,
        "G" => 1000 * 1000 * 1000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => {
            let text = format!("{text:?} is not a size; write bytes, as 4, 64Ki, 1Mi, 2Gi, 64K, 1M, 2G");
            return Err(Error::invalid(text));
        }
    };
    let number: usize =
        number.parse().map_err(|_| Error::invalid(format!("{text:?} is not a size: no number of bytes in front")))?;
    number
        .checked_mul(unit)
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or_else(|| Error::invalid(format!("{text:?} is too large")))
}

/// The inverse of [`parse`], in the largest binary unit that divides `bytes`: `64Ki`.
pub fn text(bytes: usize) -> String {
    let units = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, suffix)) => format!("{}{suffix}", bytes / unit),
        None => bytes.to_string(),
    }
}
