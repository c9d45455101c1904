//! The name that somebody who misspelt it has meant.

/// The one of `known` that is most like `name`, if any is: at most a third of the letters of the longer one differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|other| (distance(name, other), other));
    let near = near.filter(|(changes, other)| 3 * changes <= name.len().max(other.len()));
    near.min_by_key(|(changes, _)| *changes).map(|(_, other)| other)
}

/// [`nearest`] as the end of a sentence: `; the nearest is NAME`, or nothing.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or(String::new(), |near| format!("; the nearest is {near}"))
}

/// How many letters must be inserted, left out or replaced to make `b` of `a` (Levenshtein 1966).
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Of what has been read of `a`, to each beginning of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name() {
        let known = ["ring", "ring_chunked", "tree", "bruck"];
        for (name, expected) in [
            ("rng", Some("ring")),
            ("ring_chunk", Some("ring_chunked")),
            ("trees", Some("tree")),
            ("ring", Some("ring")),
            ("butterfly", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
        assert_eq!(["", "kitten", "ab"].map(|a| distance(a, "sitting")), [7, 3, 7]);
    }
}
