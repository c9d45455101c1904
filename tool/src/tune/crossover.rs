//! Finds the sizes where one algorithm becomes better than another.

/// A measured time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The median in µs.
    pub us: f64,
    /// Relative uncertainty of the median: approximately its standard error.
    pub error: f64,
}

/// Cost of a change of algorithms between two sizes, as a relative gain in time.
const CHANGE_COST: f64 = 0.03;
/// A difference counts from this many standard errors on: the best of a dozen equal algorithms differs by so many from
/// another one by chance.
const STANDARD_ERRORS: f64 = 2.0;
/// What the difference of two upper bounds counts, where nothing else decides: too little for a change.
const TIE_COST: f64 = 1e-3;

impl Sample {
    /// From at least one time.
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let quantile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        let us = quantile(0.5);
        // The standard error of a median is 1.25 σ / √n for a normal distribution, whose quartiles are 1.35 σ apart.
        let error = 0.93 * (quantile(0.75) - quantile(0.25)) / (times.len() as f64).sqrt();
        Self { us, error: if us > 0.0 { error / us } else { 0.0 } }
    }

    /// The logarithm of the time, which a coarse clock may give as 0.
    fn log(self) -> f64 {
        self.us.max(1e-3).ln()
    }

    /// The logarithm of what the time surely does not exceed.
    fn upper(self) -> f64 {
        self.log() + (STANDARD_ERRORS * self.error).ln_1p()
    }
}

/// One size: its bytes, and the time of each algorithm, `None` if it was not measured.
pub type Row = (usize, Vec<Option<Sample>>);

/// Returns which algorithm (by its index) is best up to and including how many bytes. `rows` are ordered by size, and
/// every row has a sample; the first of several rows with one size counts.
///
/// Minimizes a sum: for each size, the relative time lost against an algorithm that is surely fast, beyond the
/// uncertainty of that; and for each change of algorithms, a constant cost. So an algorithm does not replace another
/// because of a gain by chance at one size, but it does for a small gain at many sizes. The uncertainty of an algorithm
/// itself excuses nothing: else one whose times vary much would seem as good as any.
pub fn choices(rows: &[Row]) -> Vec<(usize, usize)> {
    // Between two rows of one size there is no boundary.
    let rows: Vec<&Row> = rows.chunk_by(|a, b| a.0 == b.0).map(|same| &same[0]).collect();
    let algorithms = rows.iter().map(|(_, row)| row.len()).max().unwrap_or(0);
    // By algorithm: the least cost of the sizes so far if it is used at the last of them.
    let mut cost = vec![0.0; algorithms];
    // By size and algorithm: the algorithm to use at the size before.
    let mut before: Vec<Vec<usize>> = Vec::new();
    for (_, row) in &rows {
        let best = index_of_min(&cost);
        let from: Vec<usize> =
            (0..algorithms).map(|index| if cost[index] <= cost[best] + CHANGE_COST { index } else { best }).collect();
        cost =
            (0..algorithms).map(|index| cost[from[index]] + change(from[index], index) + excess(row, index)).collect();
        before.push(from);
    }
    let mut chosen = vec![index_of_min(&cost)];
    for from in before.iter().skip(1).rev() {
        chosen.push(from[chosen[chosen.len() - 1]]);
    }
    chosen.reverse();
    let mut choices: Vec<(usize, usize)> = Vec::new();
    for (index, algorithm) in chosen.into_iter().enumerate().take(rows.len()) {
        match choices.last_mut() {
            Some((up_to, last)) if *last == algorithm => *up_to = rows[index].0,
            Some((up_to, last)) => {
                *up_to = crossing(rows[index - 1], rows[index], *last, algorithm);
                choices.push((rows[index].0, algorithm));
            }
            None => choices.push((rows[index].0, algorithm)),
        }
    }
    choices
}

fn change(from: usize, to: usize) -> f64 {
    if from == to { 0.0 } else { CHANGE_COST }
}

fn index_of_min(numbers: &[f64]) -> usize {
    (0..numbers.len()).min_by(|&a, &b| numbers[a].total_cmp(&numbers[b])).unwrap_or(0)
}

/// How much longer this one takes than the one with the lowest upper bound, beyond the uncertainty that two like the
/// latter have.
fn excess(row: &[Option<Sample>], index: usize) -> f64 {
    let Some(own) = row.get(index).copied().flatten() else { return f64::INFINITY };
    let samples = row.iter().flatten();
    let Some(best) = samples.min_by(|a, b| a.upper().total_cmp(&b.upper())) else { return f64::INFINITY };
    let noise = STANDARD_ERRORS * best.error.hypot(best.error);
    // Logarithmic, so that one bad size counts as much as two that are half as bad.
    (own.log() - best.log() - noise).max(0.0) + TIE_COST * (own.upper() - best.upper())
}

/// The size between two rows from which `right` is better than `left`: where the lines through the times of both rows
/// cross, on logarithmic axes; if a time is missing, half way.
fn crossing(from: &Row, to: &Row, left: usize, right: usize) -> usize {
    let lead = |row: &Row| Some((row.1.get(right).copied()??.us / row.1.get(left).copied()??.us).ln());
    let share = match (lead(from), lead(to)) {
        (Some(before), Some(after)) if before > 0.0 && after < 0.0 => before / (before - after),
        _ => 0.5,
    };
    let (low, high) = (from.0.max(1) as f64, to.0 as f64);
    let bytes = (low.ln() + share * (high / low).ln()).exp().round() as usize;
    bytes.clamp(from.0, to.0 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bytes: usize, times: &[f64]) -> Row {
        // 0 stands for an algorithm that was not measured.
        let sample = |&us: &f64| (us > 0.0).then_some(Sample { us, error: 0.01 });
        (bytes, times.iter().map(sample).collect())
    }

    #[test]
    fn an_algorithm_that_is_always_the_best_is_one_choice() {
        let rows: Vec<_> = (2..20).map(|lg| row(1 << lg, &[10.0, 12.0])).collect();
        assert_eq!(choices(&rows), [(1 << 19, 0)]);
        assert_eq!(choices(&rows[..1]), [(4, 0)]);
        assert_eq!(choices(&[]), []);
        assert_eq!(choices(&[row(0, &[3.0, 2.0])]), [(0, 1)], "a barrier");
    }

    #[test]
    fn of_rows_with_one_size_the_first_counts() {
        let rows = [row(16, &[10.0, 12.0]), row(16, &[12.0, 10.0]), row(64, &[12.0, 10.0])];
        assert_eq!(choices(&rows), [(32, 0), (64, 1)]);
        assert_eq!(choices(&rows[..2]), [(16, 0)]);
    }

    #[test]
    fn the_lines_cross_where_the_model_says() {
        // 10 µs and 1 ns a byte against 30 µs and 0.1 ns a byte: equal at 20 µs / 0.9 ns = 22,222 bytes.
        let rows: Vec<_> = (2..26).map(|lg| 1usize << lg).collect();
        let rows: Vec<_> = rows.iter().map(|&n| row(n, &[10.0 + n as f64 / 1e3, 30.0 + n as f64 / 1e4])).collect();
        let found = choices(&rows);
        assert_eq!((found.len(), found[0].1, found[1]), (2, 0, (1 << 25, 1)));
        assert!((21_000..=23_500).contains(&found[0].0), "{found:?}");
    }

    #[test]
    fn a_gain_by_chance_at_one_size_changes_nothing() {
        let mut rows: Vec<_> = (2..20).map(|lg| row(1 << lg, &[100.0, 110.0])).collect();
        rows[5] = row(1 << 7, &[104.0, 100.0]);
        assert_eq!(choices(&rows), [(1 << 19, 0)]);
        rows[5] = row(1 << 7, &[130.0, 100.0]);
        assert_eq!(choices(&rows).len(), 3, "a large one is none by chance");
        // At either end there is one change less.
        let last = rows.len() - 1;
        rows[5] = row(1 << 7, &[100.0, 110.0]);
        rows[last] = row(1 << 19, &[103.0, 100.0]);
        assert_eq!(choices(&rows), [(1 << 19, 0)]);
    }

    #[test]
    fn a_small_gain_at_many_sizes_counts() {
        let mut rows: Vec<_> = (2..8).map(|lg| row(1 << lg, &[100.0, 120.0])).collect();
        rows.extend((8..20).map(|lg| row(1 << lg, &[104.0, 100.0])));
        let found = choices(&rows);
        assert_eq!((found.len(), found[1]), (2, (1 << 19, 1)), "{found:?}");
    }

    #[test]
    fn differences_within_the_uncertainty_do_not_count() {
        let noisy = |bytes, a, b| {
            let sample = |us| Some(Sample { us, error: 0.1 });
            (bytes, vec![sample(a), sample(b)])
        };
        let rows: Vec<_> = (2..20)
            .map(|lg| if lg % 2 == 0 { noisy(1 << lg, 100.0, 112.0) } else { noisy(1 << lg, 112.0, 100.0) })
            .collect();
        assert_eq!(choices(&rows).len(), 1);
    }

    #[test]
    fn noise_makes_no_algorithm_better() {
        let sample = |us, error| Some(Sample { us, error });
        let sizes = || (2..16).map(|lg| 1usize << lg);
        // Slow, and its times vary so much that it might not be.
        let rows: Vec<_> = sizes().map(|bytes| (bytes, vec![sample(25.0, 1.0), sample(10.0, 0.01)])).collect();
        assert_eq!(choices(&rows), [(1 << 15, 1)]);
        assert_eq!(choices(&rows[..1]), [(4, 1)]);
        // Perhaps fast: not with confidence.
        let rows: Vec<_> = sizes().map(|bytes| (bytes, vec![sample(8.0, 0.5), sample(10.0, 0.01)])).collect();
        assert_eq!(choices(&rows), [(1 << 15, 1)]);
        // One that was the best, and whose times are slow from some size on and vary: that excuses nothing.
        let row = |bytes, short: &[Option<Sample>], long: &[Option<Sample>]| {
            (bytes, if bytes < 256 { short.to_vec() } else { long.to_vec() })
        };
        let (short, long) = ([sample(10.0, 0.01), sample(12.0, 0.01)], [sample(25.0, 1.0), sample(10.0, 0.01)]);
        let found = choices(&sizes().map(|bytes| row(bytes, &short, &long)).collect::<Vec<_>>());
        assert!(matches!(found[..], [(_, 0), (0x8000, 1)]), "{found:?}");
        // Another algorithm that is perhaps faster and whose times vary excuses nothing either.
        let (short, long) = (
            [sample(10.0, 0.01), sample(12.0, 0.01), sample(20.0, 0.01)],
            [sample(15.0, 0.01), sample(10.0, 0.01), sample(8.0, 0.5)],
        );
        let found = choices(&sizes().map(|bytes| row(bytes, &short, &long)).collect::<Vec<_>>());
        assert!(matches!(found[..], [(_, 0), (0x8000, 1)]), "{found:?}");
        // One that is the best stays so at a size where its own measurement is bad.
        let mut rows: Vec<_> = sizes().map(|bytes| (bytes, vec![sample(12.0, 0.01), sample(10.0, 0.01)])).collect();
        rows[6].1[1] = sample(11.0, 0.3);
        assert_eq!(choices(&rows), [(1 << 15, 1)]);
    }

    #[test]
    fn an_algorithm_that_was_not_measured_is_not_chosen() {
        let rows = [row(4, &[1.0, 2.0]), row(16, &[0.0, 3.0]), row(64, &[0.0, 4.0])];
        assert_eq!(choices(&rows), [(8, 0), (64, 1)]);
    }

    #[test]
    fn three_algorithms_in_order() {
        let times = |n: f64| [10.0 + n, 20.0 + n / 4.0, 50.0 + n / 16.0];
        let rows: Vec<_> = (0..14).map(|lg| row(1 << lg, &times(f64::from(1 << lg)))).collect();
        let found = choices(&rows);
        assert_eq!(found.iter().map(|choice| choice.1).collect::<Vec<_>>(), [0, 1, 2]);
        // 10 + n = 20 + n/4 at 13.3; 20 + n/4 = 50 + n/16 at 160.
        assert!((12..=15).contains(&found[0].0) && (150..=170).contains(&found[1].0), "{found:?}");
    }

    #[test]
    fn samples_have_an_uncertainty() {
        let exact = Sample::of(vec![5.0; 10]);
        assert_eq!(exact, Sample { us: 5.0, error: 0.0 });
        let few = Sample::of(vec![90.0, 100.0, 110.0]);
        let many = Sample::of((0..300).map(|i| [90.0, 100.0, 110.0][i % 3]).collect());
        assert_eq!((few.us, many.us), (100.0, 100.0));
        assert!(few.error > 0.05 && many.error < 0.02, "{few:?} {many:?}");
        assert_eq!(Sample::of(vec![0.0]), Sample { us: 0.0, error: 0.0 });
    }
}
