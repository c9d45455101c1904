//! What buffers hold: pieces of the pattern's sequences.

use std::sync::Arc;

use gloo_rs::types::DataType;

use crate::bench::pattern::{PERIOD, decode};

/// A stretch of a buffer that holds one of the pattern's sequences.
#[derive(Clone, Debug)]
pub struct Piece {
    /// First element.
    pub(super) start: usize,
    /// Elements.
    pub(super) len: usize,
    /// The sequence: [`PERIOD`] elements.
    pub(super) sequence: Arc<[u8]>,
    /// Which element of the sequence comes first.
    pub(super) phase: usize,
}

/// The pieces, so many elements further behind.
pub(super) fn shifted(mut pieces: Vec<Piece>, by: usize) -> Vec<Piece> {
    pieces.iter_mut().for_each(|piece| piece.start += by);
    pieces
}

/// Elements of a buffer that holds these pieces.
pub(super) fn end(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.start + piece.len).max().unwrap_or(0)
}

/// Writes `pieces` into `buffer`, whose elements are `size` bytes.
pub fn fill(buffer: &mut [u8], pieces: &[Piece], size: usize) {
    for piece in pieces {
        let target = &mut buffer[piece.start * size..][..piece.len * size];
        let (head, rest) = target.split_at_mut(target.len().min((PERIOD - piece.phase % PERIOD) * size));
        head.copy_from_slice(&piece.sequence[piece.phase % PERIOD * size..][..head.len()]);
        rest.chunks_mut(PERIOD * size).for_each(|chunk| chunk.copy_from_slice(&piece.sequence[..chunk.len()]));
    }
}

/// Compares `buffer` with `pieces`; the first element that is wrong, with what was expected and what is there.
pub fn verify(buffer: &[u8], pieces: &[Piece], dtype: DataType) -> Result<(), String> {
    let size = dtype.size();
    for piece in pieces {
        let found = &buffer[piece.start * size..][..piece.len * size];
        let mut done = 0;
        while done < piece.len {
            let phase = (piece.phase + done) % PERIOD;
            let run = (PERIOD - phase).min(piece.len - done);
            let (got, expected) = (&found[done * size..][..run * size], &piece.sequence[phase * size..][..run * size]);
            if got != expected {
                // Elements may be equal though their bytes are not: the sign of a zero in a complex product.
                let pairs = got.chunks_exact(size).zip(expected.chunks_exact(size)).enumerate();
                let mut values = pairs.map(|(i, (got, expected))| (i, decode(got, dtype), decode(expected, dtype)));
                if let Some((i, got, expected)) = values.find(|(_, got, expected)| got != expected) {
                    return Err(format!("element {}: expected {expected}, got {got}", piece.start + done + i));
                }
            }
            done += run;
        }
    }
    Ok(())
}
