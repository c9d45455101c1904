//! The name that somebody who misspelt it has meant.

/// The one of `known` that is most like `name`, if any is: at most a third of the letters of the longer one differ.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().map(|other| (strsim::levenshtein(name, other), other));
    let near = near.filter(|(changes, other)| 3 * changes <= name.len().max(other.len()));
    near.min_by_key(|(changes, _)| *changes).map(|(_, other)| other)
}

/// [`nearest`] as the end of a sentence: `; the nearest is NAME`, or nothing.
pub fn hint<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or(String::new(), |near| format!("; the nearest is {near}"))
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
    }
}
