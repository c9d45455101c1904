//! Adds a rank's prefix to each of its lines.

/// Longer lines are split into lines of this many bytes, so that output without newlines does not fill memory.
const LONGEST_LINE: usize = 1 << 20;

/// Converts a stream of bytes, in pieces of any size, to whole lines with a prefix. The bytes need not be text.
pub struct Prefixer {
    prefix: Vec<u8>,
    /// The incomplete line, without its prefix.
    partial: Vec<u8>,
}

impl Prefixer {
    pub fn new(prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), partial: Vec::new() }
    }

    /// Appends to `out` the lines that `data` completes.
    pub fn push(&mut self, data: &[u8], out: &mut Vec<u8>) {
        for piece in data.split_inclusive(|&byte| byte == b'\n') {
            let mut rest = piece;
            let end = usize::from(piece.ends_with(b"\n"));
            while self.partial.len() + rest.len() - end > LONGEST_LINE {
                let (head, tail) = rest.split_at(LONGEST_LINE - self.partial.len());
                self.partial.extend_from_slice(head);
                self.finish(out);
                rest = tail;
            }
            self.partial.extend_from_slice(rest);
            if end == 1 {
                self.finish(out);
            }
        }
    }

    /// Appends the incomplete line to `out`, with a newline.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        out.extend_from_slice(&self.prefix);
        out.append(&mut self.partial);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixed(pieces: &[&[u8]]) -> Vec<u8> {
        let mut prefixer = Prefixer::new("[3] ");
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| prefixer.push(piece, &mut out));
        prefixer.finish(&mut out);
        out
    }

    #[test]
    fn every_line_gets_one_prefix_for_any_split_of_the_bytes() {
        let whole = b"one\n\ntwo\nthree".as_slice();
        let expected = b"[3] one\n[3] \n[3] two\n[3] three\n".as_slice();
        assert_eq!(prefixed(&[whole]), expected);
        for cut in 0..whole.len() {
            assert_eq!(prefixed(&[&whole[..cut], &whole[cut..]]), expected, "cut at {cut}");
        }
        assert_eq!(prefixed(&whole.chunks(1).collect::<Vec<_>>()), expected);
    }

    #[test]
    fn a_line_is_held_back_until_it_is_whole() {
        let mut prefixer = Prefixer::new("[0] ");
        let mut out = Vec::new();
        prefixer.push(b"begun", &mut out);
        assert!(out.is_empty());
        prefixer.push(b" ended\nnext", &mut out);
        assert_eq!(out, b"[0] begun ended\n");
    }

    #[test]
    fn bytes_that_are_not_text_are_unchanged() {
        assert_eq!(prefixed(&[b"\xff\x00\x80\r\n"]), b"[3] \xff\x00\x80\r\n");
        assert_eq!(prefixed(&[]), b"");
    }

    #[test]
    fn a_line_without_end_is_split() {
        let long = vec![b'x'; 2 * LONGEST_LINE + 5];
        let out = prefixed(&[&long[..7], &long[7..]]);
        let lengths: Vec<_> = out.split_inclusive(|&byte| byte == b'\n').map(|line| line.len() - 5).collect();
        assert_eq!(lengths, [LONGEST_LINE, LONGEST_LINE, 5]);
        let just_fits = [vec![b'x'; LONGEST_LINE], b"\n".to_vec()].concat();
        assert_eq!(prefixed(&[&just_fits]).len(), 4 + LONGEST_LINE + 1);
    }
}
