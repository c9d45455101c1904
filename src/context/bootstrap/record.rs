//! What a rank tells the others where all tell equally much: what it has to say, or why it cannot go on.
//!
//! A record is a version (1 byte), the number of an error's kind, or 0 (1), the length of what is told (2, little-endian), the rank
//! (4) and the number of ranks (4), what is told, and zeros. All of it comes from elsewhere, and is checked.

use crate::error::{Error, ErrorKind, Result, try_zeros};
use crate::types::Rank;
use crate::wire::VERSION;

const BYTES: usize = 256;
const HEADER: usize = 12;
/// Bytes that can be told.
pub const MOST: usize = BYTES - HEADER;

/// The record of `rank`, which tells `own`; the end of a long reason is cut off.
fn write(rank: Rank, size: usize, own: &Result<Vec<u8>>) -> Vec<u8> {
    let (kind, told) = match own {
        Ok(told) => (0, &told[..]),
        Err(error) => (error.kind().number() as u8, error.message().as_bytes()),
    };
    let told = &told[..told.len().min(MOST)];
    let [low, high] = (told.len() as u16).to_le_bytes();
    let (rank, size) = ((rank as u32).to_le_bytes(), (size as u32).to_le_bytes());
    let mut record = [&[VERSION, kind, low, high], &rank[..], &size, told].concat();
    record.resize(BYTES, 0);
    record
}

/// What `rank` of `size` tells in `record`.
fn read(record: &[u8], rank: Rank, size: usize) -> Result<&[u8]> {
    let mismatch = |text: String| Err(Error::new(ErrorKind::Mismatch, text).with_rank(rank));
    let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| record[at + i]));
    let length = usize::from(u16::from_le_bytes([record[2], record[3]]));
    if record[0] != VERSION || length > MOST {
        return mismatch(format!(
            "what should come from rank {rank} is nothing that a rank of this version gives: it begins with {:02x?}",
            &record[..4]
        ));
    }
    let (its_rank, its_size) = (number(4) as usize, number(8) as usize);
    if its_rank != rank {
        return mismatch(format!("rank {its_rank} has told where rank {rank} should: the order is not that of ranks"));
    }
    if its_size != size {
        return mismatch(format!("rank {rank} is one of {its_size} ranks, and this rank one of {size}"));
    }
    let told = &record[HEADER..HEADER + length];
    match record[1] {
        0 => Ok(told),
        kind => {
            let kind = ErrorKind::of_number(kind.into()).unwrap_or(ErrorKind::Mismatch);
            Err(Error::new(kind, format!("rank {rank}: {}", String::from_utf8_lossy(told))).with_rank(rank))
        }
    }
}

/// What this rank tells, and what all do, in their order, as `gather` brings it: it is given this rank's record, and memory for those
/// of all. It is called even if this rank fails, which all hear then.
pub fn exchange(
    rank: Rank,
    size: usize,
    own: Result<Vec<u8>>,
    gather: impl FnOnce(&[u8], &mut [u8]) -> Result<()>,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let record = write(rank, size, &own);
    let mut all = try_zeros(record.len().saturating_mul(size), "what all ranks tell")?;
    let gathered = gather(&record, &mut all);
    let own = own?;
    gathered?;
    if all[rank * BYTES..][..BYTES] != record {
        let text = format!("what this rank, {rank}, has given has not come back in its place");
        return Err(Error::new(ErrorKind::Mismatch, text));
    }
    let told = all.chunks_exact(BYTES).enumerate().map(|(rank, record)| read(record, rank, size));
    Ok((own, told.collect::<Result<Vec<_>>>()?.concat()))
}
