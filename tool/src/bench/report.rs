//! The report of a measurement: percentiles, bandwidths, a table or lines of JSON.

use gloo_rs::collective::Collective;
use gloo_rs::transport::Counters;
use serde::Serialize;

use super::workload::Subject;
use crate::parse::{counted, size_text};
use crate::ranks::NO_SINGLE_COPY;

/// One line of the report. The fields are those of `--json`, in their order.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub collective: &'static str,
    /// The algorithm that ran, also for `auto`.
    pub algorithm: String,
    pub transport: &'static str,
    /// Whether ranks that share memory read what is long in each other's process; `None` if none share memory.
    pub single_copy: Option<bool>,
    pub ranks: usize,
    pub bytes: usize,
    pub count: usize,
    pub dtype: &'static str,
    pub op: &'static str,
    pub inputs: usize,
    pub iterations: usize,
    #[serde(flatten)]
    pub times: Times,
    /// Time of a call in loops of back-to-back calls, in µs: the median of the loops, each of the slowest rank.
    pub loop_us: Option<f64>,
    #[serde(flatten)]
    pub bandwidth: Bandwidth,
    pub verified: bool,
    /// Only with `--requests`; then the times above are those of all requests together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// The work requests of rank 0; only with the transport ibverbs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
}

/// What came of computing while requests were active, and then waiting for them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Overlap {
    /// Number of requests that are active at the same time.
    pub requests: usize,
    /// Time of the computation alone, in µs: about that of the requests alone.
    pub compute_us: f64,
    /// Time of both together: the median, each of the slowest rank.
    pub total_us: f64,
    /// The share of the requests' time that the computation hid.
    pub percent: f64,
}

impl Overlap {
    /// `pure_us` is the time of the requests alone.
    pub fn of(requests: usize, pure_us: f64, compute_us: f64, total_us: f64) -> Self {
        let percent = if pure_us > 0.0 { 100.0 * (1.0 - (total_us - compute_us) / pure_us) } else { 0.0 };
        Self { requests, compute_us, total_us, percent: percent.clamp(0.0, 100.0) }
    }
}

/// What the queue pairs of a rank do for a call, on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Requests {
    pub sends: f64,
    pub sent_bytes: f64,
    pub rdma_writes: f64,
    pub written_bytes: f64,
    pub rdma_reads: f64,
    pub read_bytes: f64,
    pub doorbells: f64,
    pub receives: f64,
    pub completions: f64,
    pub registrations: f64,
}

impl Requests {
    /// Returns the requests of each of `calls` calls between two counts.
    pub fn between(before: Counters, after: Counters, calls: usize) -> Self {
        let each = |of: fn(&Counters) -> u64| (of(&after) - of(&before)) as f64 / calls as f64;
        Self {
            sends: each(|counters| counters.sends),
            sent_bytes: each(|counters| counters.sent_bytes),
            rdma_writes: each(|counters| counters.writes),
            written_bytes: each(|counters| counters.written_bytes),
            rdma_reads: each(|counters| counters.reads),
            read_bytes: each(|counters| counters.read_bytes),
            doorbells: each(|counters| counters.doorbells),
            receives: each(|counters| counters.receives),
            completions: each(|counters| counters.completions),
            registrations: each(|counters| counters.registrations),
        }
    }

    /// Formats the counts for people.
    fn text(&self) -> String {
        format!(
            "{:>10}  each: {} sends of {} bytes in all, {} RDMA writes of {}, {} RDMA reads of {}; {} doorbells, {} receives posted, \
             {} completions, {} registrations",
            "",
            self.sends,
            self.sent_bytes,
            self.rdma_writes,
            self.written_bytes,
            self.rdma_reads,
            self.read_bytes,
            self.doorbells,
            self.receives,
            self.completions,
            self.registrations
        )
    }
}

/// Statistics of the iterations' times in µs, each that of the slowest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Times {
    pub min_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

impl Times {
    /// From at least one time.
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        // The smallest time such that this percentage of the times is not larger.
        let percentile = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
        Self { min_us: times[0], p50_us: percentile(50), p99_us: percentile(99), max_us: times[times.len() - 1] }
    }
}

/// Bandwidths in GB/s (10⁹ bytes), as nccl-tests define them (doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests), from
/// the median time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Bytes by time.
    pub algbw_gbs: f64,
    /// `algbw_gbs` times a factor that makes it comparable to a link's speed for any number of ranks: see
    /// [`bus_factor`].
    pub busbw_gbs: f64,
}

impl Bandwidth {
    /// `bytes` is the sum over all threads of a rank.
    pub fn of(subject: Subject, ranks: usize, bytes: usize, us: f64) -> Self {
        let algbw_gbs = if us > 0.0 { bytes as f64 / us / 1e3 } else { 0.0 };
        Self { algbw_gbs, busbw_gbs: algbw_gbs * bus_factor(subject, ranks) }
    }
}

/// The least fraction of a buffer that must cross each rank's link in one direction, if the work is distributed
/// optimally: from PERFORMANCE.md of nccl-tests, and for other collectives derived in the same way.
fn bus_factor(subject: Subject, ranks: usize) -> f64 {
    use Collective::*;
    let ranks = ranks as f64;
    let others = (ranks - 1.0) / ranks;
    match subject {
        Subject::Collective(Allreduce) => 2.0 * others,
        Subject::Collective(
            ReduceScatter | Allgather | Allgatherv | Gather | Gatherv | Scatter | Scatterv | Alltoall | Alltoallv,
        ) => others,
        Subject::Collective(Reduce | Broadcast | PairwiseExchange | Scan | Exscan) | Subject::SendRecv => 1.0,
        Subject::Collective(Barrier) => 0.0,
    }
}

const COLUMNS: [(&str, usize); 13] = [
    ("size", 10),
    ("count", 12),
    ("min µs", 12),
    ("p50 µs", 12),
    ("p99 µs", 12),
    ("max µs", 12),
    ("loop µs", 12),
    ("compute µs", 12),
    ("both µs", 12),
    ("overlap %", 11),
    ("algbw GB/s", 11),
    ("busbw GB/s", 11),
    ("verified", 9),
];

/// The head of the table. `special`: what is special about buffers and calls, each after a comma.
pub fn head(row: &Row, threads: usize, special: &str) -> String {
    let types: String =
        [row.dtype, row.op].iter().filter(|name| **name != NONE).map(|name| format!(", {name}")).collect();
    let inputs = if row.inputs > 1 { format!(", {} buffers", row.inputs) } else { String::new() };
    let threads = if threads > 1 { format!(", {threads} threads") } else { String::new() };
    let copies = if row.single_copy == Some(false) { NO_SINGLE_COPY } else { "" };
    let title = format!(
        "# {} over {}{copies}, {}{threads}{types}{inputs}{special}, {}",
        row.collective,
        row.transport,
        counted(row.ranks, "rank"),
        counted(row.iterations, "iteration")
    );
    format!("{title}\n{}  algorithm", columns(row, &COLUMNS.map(|(name, _)| name.to_owned())))
}

/// Cells of [`COLUMNS`]; without those of what was not measured, and for a barrier without those of its data.
fn columns(row: &Row, cells: &[String]) -> String {
    let is_shown = |name: &str| match name {
        "size" | "count" | "algbw GB/s" | "busbw GB/s" => row.dtype != NONE,
        "loop µs" => row.loop_us.is_some(),
        "compute µs" | "both µs" | "overlap %" => row.overlap.is_some(),
        _ => true,
    };
    let shown = cells.iter().zip(COLUMNS).filter(|(_, (name, _))| is_shown(name));
    shown.map(|(cell, (_, width))| format!("{cell:>width$}")).collect()
}

/// One line of the table.
pub fn line(row: &Row) -> String {
    let Times { min_us, p50_us, p99_us, max_us } = row.times;
    let Bandwidth { algbw_gbs, busbw_gbs } = row.bandwidth;
    let cells = [
        size_text(row.bytes),
        row.count.to_string(),
        format!("{min_us:.2}"),
        format!("{p50_us:.2}"),
        format!("{p99_us:.2}"),
        format!("{max_us:.2}"),
        row.loop_us.map_or(String::new(), |us| format!("{us:.2}")),
        row.overlap.map_or(String::new(), |overlap| format!("{:.2}", overlap.compute_us)),
        row.overlap.map_or(String::new(), |overlap| format!("{:.2}", overlap.total_us)),
        row.overlap.map_or(String::new(), |overlap| format!("{:.1}", overlap.percent)),
        format!("{algbw_gbs:.3}"),
        format!("{busbw_gbs:.3}"),
        if row.verified { "yes" } else { "NO" }.to_owned(),
    ];
    let requests = row.requests.map_or(String::new(), |requests| format!("\n{}", requests.text()));
    format!("{}  {}{requests}", columns(row, &cells), row.algorithm)
}

/// The last line: the average of the bus bandwidths of all sizes, as nccl-tests prints it.
pub fn average(busbw_gbs: &[f64]) -> String {
    format!("# average bus bandwidth: {:.3} GB/s", busbw_gbs.iter().sum::<f64>() / busbw_gbs.len().max(1) as f64)
}

/// The name of no operation, and of no type.
pub const NONE: &str = "none";

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let subject = Subject::Collective(Collective::Allreduce);
        Row {
            collective: subject.name(),
            algorithm: "ring_chunked".into(),
            transport: "tcp",
            single_copy: None,
            ranks: 4,
            bytes: 65536,
            count: 16384,
            dtype: "float32",
            op: "sum",
            inputs: 1,
            iterations: 100,
            times: Times::of(vec![50.0, 40.0, 60.5]),
            loop_us: None,
            bandwidth: Bandwidth::of(subject, 4, 65536, 50.0),
            verified: true,
            overlap: None,
            requests: None,
        }
    }

    #[test]
    fn a_barrier_has_no_columns_of_data() {
        let barrier = Row { collective: "barrier", dtype: NONE, op: NONE, algorithm: "dissemination".into(), ..row() };
        let head = head(&barrier, 1, "");
        assert!(head.starts_with("# barrier over tcp, 4 ranks, 100 iterations\n"), "{head}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
        assert_eq!(words(head.lines().last().unwrap()), "min µs p50 µs p99 µs max µs verified algorithm");
        assert_eq!(words(&line(&barrier)), "40.00 50.00 60.50 60.50 yes dissemination");
    }

    #[test]
    fn requests_have_columns_for_their_overlap() {
        let overlap = Some(Overlap::of(3, 50.0, 52.0, 77.0));
        let row = Row { overlap, ..row() };
        let (head, line) = (head(&row, 1, ", 3 requests at a time"), line(&row));
        assert!(
            head.starts_with("# allreduce over tcp, 4 ranks, float32, sum, 3 requests at a time, 100 iterations\n"),
            "{head}"
        );
        assert!(line.contains(" 52.00       77.00       50.0 "), "{line}");
        let json = serde_json::to_string(&row).unwrap();
        assert!(
            json.ends_with(r#","overlap":{"requests":3,"compute_us":52.0,"total_us":77.0,"percent":50.0}}"#),
            "{json}"
        );
    }

    #[test]
    fn the_average_is_over_all_sizes() {
        assert_eq!(average(&[0.0, 1.5, 3.0]), "# average bus bandwidth: 1.500 GB/s");
    }

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let hundred = Times::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(hundred, Times { min_us: 1.0, p50_us: 50.0, p99_us: 99.0, max_us: 100.0 });
        let one = Times::of(vec![7.0]);
        assert_eq!(one, Times { min_us: 7.0, p50_us: 7.0, p99_us: 7.0, max_us: 7.0 });
        let three = Times::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((three.p50_us, three.p99_us), (2.0, 3.0));
        let many = Times::of((1..=1000).map(f64::from).collect());
        assert_eq!((many.p50_us, many.p99_us), (500.0, 990.0));
    }

    #[test]
    fn bandwidth_is_bytes_by_time_and_the_factors_are_those_of_nccl_tests() {
        let bus =
            |collective, ranks| Bandwidth::of(Subject::Collective(collective), ranks, 8_000_000, 1000.0).busbw_gbs;
        assert_eq!(
            Bandwidth::of(Subject::SendRecv, 4, 8_000_000, 1000.0),
            Bandwidth { algbw_gbs: 8.0, busbw_gbs: 8.0 }
        );
        assert_eq!(bus(Collective::Allreduce, 2), 8.0);
        assert_eq!(bus(Collective::Allreduce, 4), 12.0);
        for collective in [Collective::ReduceScatter, Collective::Allgather, Collective::Alltoall] {
            assert_eq!(bus(collective, 4), 6.0);
        }
        for collective in [Collective::Reduce, Collective::Broadcast] {
            assert_eq!(bus(collective, 4), 8.0);
        }
        assert_eq!(bus(Collective::Allreduce, 1), 0.0);
    }

    #[test]
    fn json_has_exactly_the_fields_that_scripts_rely_on_in_their_order() {
        let json = serde_json::to_string(&row()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let fields = "collective algorithm transport single_copy ranks bytes count dtype op inputs iterations min_us p50_us p99_us \
                      max_us loop_us algbw_gbs busbw_gbs verified";
        let mut at = 0;
        for field in fields.split(' ') {
            let position = json.find(&format!("\"{field}\":")).unwrap_or_else(|| panic!("no {field} in {json}"));
            assert!(position > at || at == 0, "{field} is out of order in {json}");
            at = position;
        }
        assert_eq!(value.as_object().unwrap().len(), fields.split(' ').count());
        assert_eq!(value["bytes"], 65536);
        assert_eq!(value["max_us"], 60.5);
        assert_eq!(value["verified"], true);
    }

    #[test]
    fn table_columns_are_aligned_with_their_names() {
        let row = row();
        let head = head(&row, 2, ", in place");
        let (title, names) = head.split_once('\n').unwrap();
        assert_eq!(title, "# allreduce over tcp, 4 ranks, 2 threads, float32, sum, in place, 100 iterations");
        let line = line(&row);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["64Ki", "16384", "40.00", "50.00", "60.50", "60.50", "1.311", "1.966", "yes", "ring_chunked"]
        );
        let of_overlap = ["compute µs", "both µs", "overlap %"];
        let width: usize = COLUMNS.iter().filter(|(name, _)| !of_overlap.contains(name)).map(|(_, width)| width).sum();
        let columns = |text: &str, width| text.chars().take(width).collect::<String>();
        assert!(columns(names, width - 12).ends_with("verified") && columns(&line, width - 12).ends_with("yes"));

        let looped = Row { loop_us: Some(39.5), ..row };
        let (head, line) = (super::head(&looped, 1, ""), super::line(&looped));
        let names = head.lines().last().unwrap();
        assert!(columns(names, width).ends_with("verified") && columns(&line, width).ends_with("yes"));
        let loops = names.find("loop µs").unwrap() + "loop µs".len();
        assert!(columns(&line, names[..loops].chars().count()).ends_with(" 39.50"), "{names}\n{line}");
    }

    #[test]
    fn work_requests_are_those_of_one_call() {
        let before = Counters { sends: 7, doorbells: 1, ..Counters::default() };
        let after = Counters { sends: 17, doorbells: 6, written_bytes: 4000, ..before };
        let requests = Requests::between(before, after, 10);
        assert_eq!((requests.sends, requests.doorbells, requests.written_bytes), (1.0, 0.5, 400.0));
        let text = line(&Row { requests: Some(requests), ..row() });
        assert!(
            text.lines().nth(1).unwrap().contains("each: 1 sends of 0 bytes in all, 0 RDMA writes of 400,"),
            "{text}"
        );
        assert!(serde_json::to_string(&Row { requests: Some(requests), ..row() }).unwrap().contains("\"sends\":1.0"));
    }

    #[test]
    fn the_way_through_shared_memory_is_shown() {
        let row = Row { transport: "shm", single_copy: Some(false), ..row() };
        assert!(head(&row, 1, "").starts_with(&format!("# allreduce over shm{NO_SINGLE_COPY}, 4 ranks, ")));
        assert!(serde_json::to_string(&row).unwrap().contains("\"transport\":\"shm\",\"single_copy\":false,"));
    }

    #[test]
    fn a_wrong_result_is_marked() {
        assert!(line(&Row { verified: false, ..row() }).contains(" NO "));
    }

    #[test]
    fn what_the_computation_hides_is_overlap() {
        let percent = |pure, compute, total| Overlap::of(1, pure, compute, total).percent;
        assert_eq!(percent(10.0, 10.0, 10.0), 100.0, "all of it");
        assert_eq!(percent(10.0, 10.0, 20.0), 0.0, "one after the other");
        assert_eq!(percent(10.0, 12.0, 17.0), 50.0);
        assert_eq!((percent(10.0, 10.0, 30.0), percent(10.0, 10.0, 9.0), percent(0.0, 1.0, 1.0)), (0.0, 100.0, 0.0));
    }
}
