//! Records of equal length, with the content that a rank publishes or the error for which it fails.
//!
//! A record is the version of the library (8 bytes), which is there in every version, the number of an error's kind, or
//! 0 (1), the length of the content (2, little-endian), the rank (4), the number of ranks (4), the content, and zeros.
//! The content of an error is what [`of_error`] returns. Records of other ranks are not trusted.

use crate::context::versions::take;
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::{try_with_capacity, try_zeros};
use crate::types::Rank;
use crate::version::{VERSION_BYTES, Version};

const BYTES: usize = 256;
const HEADER: usize = VERSION_BYTES + 11;
/// Most bytes of content.
pub const MAX_CONTENT_BYTES: usize = BYTES - HEADER;

/// Stands for the rank to blame where no rank is known to be.
const NOBODY: u32 = u32::MAX;
const BLAMED_BYTES: usize = size_of::<u32>();

/// The number of an error's kind, and what other ranks are told of it besides: the rank to blame (4 bytes,
/// little-endian), and the text.
pub fn of_error(error: &Error) -> (u8, Vec<u8>) {
    let blamed = error.details().rank.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(NOBODY);
    (error.kind().number() as u8, [&blamed.to_le_bytes()[..], error.message().as_bytes()].concat())
}

/// The error that `rank` of `size` has told others as [`of_error`] says; zeros may follow.
pub fn to_error(rank: Rank, size: usize, kind: u8, content: &[u8]) -> Error {
    let kind = ErrorKind::of_number(kind.into()).unwrap_or(ErrorKind::Mismatch);
    let (blamed, text) = content.split_at(content.len().min(BLAMED_BYTES));
    let blamed = blamed.try_into().map_or(NOBODY, u32::from_le_bytes) as usize;
    let blamed = if blamed < size { blamed } else { rank };
    let text = String::from_utf8_lossy(text);
    Error::new(kind, format!("rank {rank}: {}", text.trim_end_matches('\0'))).with_rank(blamed)
}

/// The record of the rank `who` of `size` with `own`; a long error text is cut off.
fn write((rank, version): (Rank, Version), size: usize, own: &Result<Vec<u8>>) -> Vec<u8> {
    let told;
    let (kind, content) = match own {
        Ok(content) => (0, &content[..]),
        Err(error) => {
            told = of_error(error);
            (told.0, &told.1[..])
        }
    };
    let content = &content[..content.len().min(MAX_CONTENT_BYTES)];
    let (length, version) = ((content.len() as u16).to_le_bytes(), version.encode());
    let (rank, size) = ((rank as u32).to_le_bytes(), (size as u32).to_le_bytes());
    let mut record = [&version[..], &[kind], &length, &rank, &size, content].concat();
    record.resize(BYTES, 0);
    record
}

/// The content in the `record` of `rank` of `size`; `own`: this rank and its version.
fn read(record: &[u8], rank: Rank, size: usize, own: (Rank, Version)) -> Result<&[u8]> {
    let mismatch = |text: String| Err(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
    let (_, rest) = take(rank, record, own)?;
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| rest[at + i])) as usize;
    let (length, record_rank, record_size) =
        (usize::from(u16::from_le_bytes([rest[1], rest[2]])), number(3), number(7));
    if length > MAX_CONTENT_BYTES {
        return mismatch(format!(
            "the record of rank {rank} says that it has {length} bytes, more than a record can have"
        ));
    }
    if record_rank != rank {
        return mismatch(format!(
            "the record of rank {record_rank} is in the place of that of rank {rank}: the order is not that of ranks"
        ));
    }
    if record_size != size {
        return mismatch(format!("rank {rank} is one of {record_size} ranks, and this rank one of {size}"));
    }
    let content = &record[HEADER..HEADER + length];
    match rest[0] {
        0 => Ok(content),
        kind => Err(to_error(rank, size, kind, content)),
    }
}

/// Exchanges records of ranks of which `who` is this one, with its version, by `gather`, which gets this rank's record,
/// and memory for the records of all. Returns this rank's content, and the contents of all ranks in their order.
/// `gather` is called even if this rank fails, so that all ranks get its error.
pub fn exchange(
    who: (Rank, Version),
    size: usize,
    own: Result<Vec<u8>>,
    gather: impl FnOnce(&[u8], &mut [u8]) -> Result<()>,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let (record, rank) = (write(who, size, &own), who.0);
    let mut all = try_zeros(record.len().saturating_mul(size), "the records of all ranks")?;
    let gathered = gather(&record, &mut all);
    let own = own?;
    gathered?;
    if all[rank * BYTES..][..BYTES] != record {
        let text = format!("what this rank, {rank}, has given has not come back in its place");
        return Err(Error::new(ErrorKind::Mismatch, text));
    }
    let mut contents = try_with_capacity(all.len(), "the contents of all ranks' records")?;
    for (rank, record) in all.chunks_exact(BYTES).enumerate() {
        contents.extend_from_slice(read(record, rank, size, who)?);
    }
    Ok((own, contents))
}
