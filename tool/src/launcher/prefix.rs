//! Adds a rank's prefix to each of its lines.

/// Longer lines are split into lines of this many bytes, so that output without newlines does not fill memory.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Converts a stream of bytes, in pieces of any size, to whole lines with a prefix. The bytes need not be text.
///
/// A line ends with a newline. If it has a carriage return, as a progress bar has, its last part is passed on as soon
/// as it comes, with a carriage return at its end, and once more as a whole when more of it comes. So whoever writes
/// next begins at the beginning of a line.
pub struct Prefixer {
    prefix: Vec<u8>,
    /// The incomplete line after its last carriage return, without its prefix; that return itself if nothing has
    /// followed it.
    partial: Vec<u8>,
    /// Whether the incomplete line has had a carriage return.
    overwrites: bool,
    /// Whether `partial` has been passed on.
    shown: bool,
}

impl Prefixer {
    pub fn new(prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), partial: Vec::new(), overwrites: false, shown: false }
    }

    /// Appends to `out` what can be passed on once `data` has come.
    pub fn push(&mut self, data: &[u8], out: &mut Vec<u8>) {
        for piece in data.split_inclusive(|&byte| matches!(byte, b'\n' | b'\r')) {
            // A carriage return before a newline belongs to the end of the line.
            if self.partial.ends_with(b"\r") && piece != b"\n" {
                self.show(out);
                self.partial.clear();
            }
            self.extend(piece, out);
            match piece.last() {
                Some(b'\n') => self.finish(out),
                Some(b'\r') => self.overwrites = true,
                _ => {}
            }
        }
        if self.overwrites {
            self.show(out);
        }
    }

    /// Adds to the incomplete line, of which no more than [`MAX_LINE_BYTES`] bytes are kept.
    fn extend(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let mut rest = piece;
        let end = usize::from(piece.ends_with(b"\n"));
        while self.partial.len() + rest.len() - end > MAX_LINE_BYTES {
            let (head, tail) = rest.split_at(MAX_LINE_BYTES - self.partial.len());
            self.partial.extend_from_slice(head);
            self.finish(out);
            rest = tail;
        }
        self.partial.extend_from_slice(rest);
        // A carriage return alone is nothing new to show.
        self.shown &= piece == b"\r";
    }

    /// Passes on the last part of a line that may be overwritten, unless there is nothing new in it.
    fn show(&mut self, out: &mut Vec<u8>) {
        let text = self.partial.strip_suffix(b"\r").unwrap_or(&self.partial);
        if !self.shown && !text.is_empty() {
            for part in [&self.prefix, text, &b"\r"[..]] {
                out.extend_from_slice(part);
            }
        }
        self.shown = true;
    }

    /// Appends the incomplete line to `out`, with a newline.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        (self.overwrites, self.shown) = (false, false);
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
    fn progress_bars_are_passed_on_at_once() {
        // What is passed on after each piece.
        let after = |pieces: &[&[u8]]| -> Vec<String> {
            let mut prefixer = Prefixer::new("[0] ");
            let texts = pieces.iter().map(|piece| {
                let mut out = Vec::new();
                prefixer.push(piece, &mut out);
                String::from_utf8(out).unwrap()
            });
            let mut texts: Vec<_> = texts.collect();
            let mut out = Vec::new();
            prefixer.finish(&mut out);
            texts.push(String::from_utf8(out).unwrap());
            texts
        };
        // With the return at the end, and at the beginning.
        assert_eq!(after(&[b"10%\r", b"20%\r", b"done\n"]), ["[0] 10%\r", "[0] 20%\r", "[0] done\n", ""]);
        assert_eq!(after(&[b"\r10%", b"\r20%", b"\n"]), ["[0] 10%\r", "[0] 20%\r", "[0] 20%\n", ""]);
        assert_eq!(
            after(&[b"\r10%", b" of 8", b"\rnext"]),
            ["[0] 10%\r", "[0] 10% of 8\r", "[0] next\r", "[0] next\n"]
        );
        assert_eq!(after(&[b"a\rb\rc\n", b"d"]), ["[0] a\r[0] b\r[0] c\n", "", "[0] d\n"], "nothing is left out");
        assert_eq!(after(&[b"a\r", b"\n", b"b"]), ["[0] a\r", "[0] a\r\n", "", "[0] b\n"]);
        assert_eq!(after(&[b"a\r"]), ["[0] a\r", "[0] a\r\n"]);
    }

    #[test]
    fn bytes_that_are_not_text_are_unchanged() {
        assert_eq!(prefixed(&[b"\xff\x00\x80\r\n"]), b"[3] \xff\x00\x80\r\n");
        assert_eq!(prefixed(&[]), b"");
    }

    #[test]
    fn a_line_without_end_is_split() {
        let long = vec![b'x'; 2 * MAX_LINE_BYTES + 5];
        let out = prefixed(&[&long[..7], &long[7..]]);
        let lengths: Vec<_> = out.split_inclusive(|&byte| byte == b'\n').map(|line| line.len() - 5).collect();
        assert_eq!(lengths, [MAX_LINE_BYTES, MAX_LINE_BYTES, 5]);
        let just_fits = [vec![b'x'; MAX_LINE_BYTES], b"\n".to_vec()].concat();
        assert_eq!(prefixed(&[&just_fits]).len(), 4 + MAX_LINE_BYTES + 1);
    }
}
