//! The contents of buffers: pieces of the pattern's sequences.

use std::sync::Arc;

use gloo_rs::types::DataType;

use crate::bench::pattern::{PERIOD, decode};

/// A range of a buffer that contains one of the pattern's sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First element.
    pub(super) start: usize,
    /// Number of elements.
    pub(super) len: usize,
    /// The sequence: [`PERIOD`] elements.
    pub(super) sequence: Arc<[u8]>,
    /// Index of the first element in the sequence.
    pub(super) phase: usize,
}

/// The pieces, shifted by this many elements.
pub(super) fn shifted(mut pieces: Vec<Piece>, by: usize) -> Vec<Piece> {
    pieces.iter_mut().for_each(|piece| piece.start += by);
    pieces
}

/// Number of elements of a buffer that contains these pieces.
pub(super) fn end(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.start + piece.len).max().unwrap_or(0)
}

/// Writes `pieces` into `buffer`, whose elements have `size` bytes.
pub fn fill(buffer: &mut [u8], pieces: &[Piece], size: usize) {
    for piece in pieces {
        let target = &mut buffer[piece.start * size..][..piece.len * size];
        let (head, rest) = target.split_at_mut(target.len().min((PERIOD - piece.phase % PERIOD) * size));
        head.copy_from_slice(&piece.sequence[piece.phase % PERIOD * size..][..head.len()]);
        rest.chunks_mut(PERIOD * size).for_each(|chunk| chunk.copy_from_slice(&piece.sequence[..chunk.len()]));
    }
}

/// Compares `buffer` with `pieces`. Returns the first wrong element, with the expected and the actual value.
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
                // Elements may be equal although their bytes differ: the sign of a zero in a complex product.
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
