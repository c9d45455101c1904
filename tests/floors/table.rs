//! The table of floors in `docs/architecture.md`.

/// A row of it: a floor, and the files and folders there.
struct Row {
    floor: usize,
    /// A folder ends with `/`.
    paths: Vec<String>,
}

pub struct Table(Vec<Row>);

impl Table {
    /// Reads the table out of the page.
    pub fn read(page: &str) -> Self {
        let section = page.split("## Floors").nth(1).expect("there is no section of floors");
        let section = section.split("\n## ").next().unwrap();
        let row = |line: &str| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let floor = cells.next()?.parse().ok()?;
            let quoted = cells.next()?.split('`').skip(1).step_by(2);
            Some(Row { floor, paths: quoted.flat_map(expanded).collect() })
        };
        let rows: Vec<Row> = section.lines().filter_map(row).collect();
        assert!(!rows.is_empty(), "the table of floors is empty");
        Self(rows)
    }

    /// The row that a file belongs to: that with the longest path, if there are several.
    pub fn row_of(&self, file: &str) -> Option<usize> {
        let matches = |path: &&String| file == *path || path.ends_with('/') && file.starts_with(*path);
        let longest = |row: &Row| row.paths.iter().filter(matches).map(String::len).max();
        let rows = self.0.iter().enumerate().filter_map(|(i, row)| Some((longest(row)?, i)));
        rows.max().map(|(_, row)| row)
    }

    pub fn floor(&self, row: usize) -> usize {
        self.0[row].floor
    }
}

/// `a/{b,c}.rs` is two paths; `a/<any>/b.rs` is in the folder `a/`.
fn expanded(path: &str) -> Vec<String> {
    let path = path.split('<').next().unwrap();
    let Some((before, rest)) = path.split_once('{') else { return vec![path.to_owned()] };
    let (names, after) = rest.split_once('}').expect("a bracket is not closed");
    names.split(',').map(|name| format!("{before}{name}{after}")).collect()
}
