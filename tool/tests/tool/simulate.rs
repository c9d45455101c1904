//! Tests of `gloo-rs simulate` as a process.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::launcher::{gloo_rs, text};
use crate::tier::Tier;
use gloo_rs::collective::Collective;
use serde_json::Value;

fn simulate(args: &str) -> Command {
    gloo_rs(&["simulate"].into_iter().chain(args.split_whitespace()).collect::<Vec<_>>())
}

fn output(args: &str) -> String {
    let output = simulate(args).output().unwrap();
    assert!(output.status.success(), "{args}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    text(&output.stderr)
}

fn json(args: &str) -> Value {
    serde_json::from_str(&output(&format!("{args} --json"))).unwrap()
}

#[track_caller]
fn refused(args: &str, code: i32, why: &str) {
    let output = simulate(args).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{args}: {}", stderr(&output));
    assert!(stderr(&output).contains(why), "{args}: {} does not say {why:?}", stderr(&output));
    assert!(output.stdout.is_empty());
}

#[test]
fn json_has_the_fields_that_scripts_rely_on() {
    let text = output(
        "allreduce --algorithm ring_segmented --ranks 8 --bytes 64Mi --alpha 10us --bandwidth 25GB/s --gamma 0.05ns \
         --segment 1Gi --json",
    );
    let value: Value = serde_json::from_str(&text).unwrap();
    let fields = ["collective", "algorithm", "ranks", "bytes", "time_us", "steps", "bytes_sent_max", "scratch_bytes"];
    let places: Vec<_> = fields.iter().map(|field| text.find(&format!("\"{field}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "{text}");
    assert_eq!((&value["collective"], &value["algorithm"]), (&"allreduce".into(), &"ring_segmented".into()));
    assert_eq!((&value["ranks"], &value["bytes"], &value["steps"]), (&8.into(), &(64 << 20).into(), &14.into()));
    assert_eq!((&value["bytes_sent_max"], &value["scratch_bytes"]), (&(112 << 20).into(), &0.into()));
    let chunk = f64::from(8 << 20);
    let time = 14.0 * (10.0 + chunk / 25e3) + 7.0 * chunk * 5e-5;
    assert!((value["time_us"].as_f64().unwrap() / time - 1.0).abs() < 1e-6, "{} is not {time}", value["time_us"]);
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn every_collective_can_be_simulated_on_hosts() {
    for collective in Collective::ALL {
        let value = json(&format!(
            "{} --algorithm {} --ranks 8 --hosts 2x4 --bytes 64Ki --root 0",
            collective.name(),
            collective.algorithms()[0].name
        ));
        assert!(value["time_us"].as_f64().unwrap() > 1.0, "{value}");
        assert!(value["link_use"].as_f64().unwrap() <= 1.0, "{value}");
    }
}

/// 2 µs for each message that a rank sends to another host, and for each that it receives from one.
#[test]
fn ranks_are_busy_with_messages_between_hosts() {
    let time = |more: &str| {
        let args = format!("barrier --algorithm all_to_all --ranks 256 --bandwidth 12.5GB/s {more}");
        json(&args)["time_us"].as_f64().unwrap()
    };
    assert!((time("--alpha 20us") / (2.0 * 2.0 * 255.0) - 1.0).abs() < 0.02, "{}", time(""));
    assert!(
        (time("--overhead 1us --gap 3us") / (4.0 * 255.0) - 1.0).abs() < 0.02,
        "{}",
        time("--overhead 1us --gap 3us")
    );
    let free = time("--overhead 0us --gap 0us");
    assert!(free < 21.0 && time("--hosts 1x256") < 2.0, "{free}");
    assert!(time("--alpha 1us") < 260.0 * 2.0, "half of α at most: {}", time("--alpha 1us"));
    refused(
        "barrier --ranks 4 --alpha 1us --overhead 1us",
        2,
        "--overhead is 1 µs, at both ends; that is more than --alpha, 1 µs",
    );
}

#[test]
fn hosts_and_their_links_make_a_difference() {
    let time = |more: &str| {
        let args = format!("allgather --algorithm ring --ranks 16 --bytes 16Mi --gamma 0 {more}");
        json(&args)["time_us"].as_f64().unwrap()
    };
    let flat = time("");
    let near = time("--hosts 1x16 --intra-bandwidth 100GB/s");
    let shared = time("--hosts 4x4 --bandwidth 1GB/s");
    assert!(near < flat && flat < shared, "{near} {flat} {shared}");
    assert_eq!(time("--hosts 16x1"), flat, "every rank on its own host, said in another way");
    assert!(time("--hosts 4,4,4,4 --bandwidth 1GB/s") == shared);
    assert!(time("--bandwidth 25GB/s") < flat && time("--alpha 100us") > flat);
    let both = "--hosts 4x4 --intra-alpha 3us --intra-bandwidth 2GB/s";
    assert_eq!(time("--hosts 4x4 --intra 3us,2GB/s"), time(both));
    assert!(time(both) > time("--hosts 4x4 --intra 3us,50GB/s"));
}

#[test]
fn the_text_describes_the_simulation() {
    let text = output("allreduce --algorithm recursive_doubling --ranks 16 --bytes 1Mi --alpha 5us");
    for part in [
        "allreduce recursive_doubling: 16 ranks, 1Mi bytes of float32",
        "each rank on its own host; α 5 µs, 12.5 GB/s, o 2 µs, g 100 ns; reduces at 20 GB/s",
        "\nsteps       4 messages",
        "sent by a rank at most 4.00 MiB, by all 64.0 MiB; reduced by it at most 4.00 MiB",
        "\nmemory      scratch of a rank at most 1.00 MiB",
    ] {
        assert!(text.contains(part), "{text}: no {part:?}");
    }
}

/// An SVG in which every tag is closed.
fn check_svg(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.starts_with("<svg "));
    let mut open: Vec<&str> = Vec::new();
    for tag in text.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split_whitespace().next().unwrap()),
        }
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
    }
    assert!(open.is_empty(), "{open:?}");
    text
}

#[test]
fn plots_are_well_formed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plot.svg");
    let plot = |args: &str| {
        let text = output(&format!("{args} --plot {}", file.display()));
        (text, check_svg(&file))
    };
    let (_, svg) = plot("allreduce --algorithm halving_doubling --ranks 8 --bytes 1Mi");
    assert!(svg.contains("rank 0") && svg.contains("rank 7") && svg.contains("reduce"));
    let (_, svg) = plot("allreduce --algorithm ring_segmented --ranks 100 --bytes 1Mi");
    assert_eq!(svg.matches("\nrank ").count(), 32, "a selection");
    assert!(svg.contains("rank 0\n") && svg.contains("rank 99\n"), "the first and the last among them");
    let (table, svg) =
        plot("allreduce --compare --ranks 4..64 --bytes 64Ki --algorithm ring_segmented,recursive_doubling");
    assert_eq!(table.lines().count(), 1 + 5, "{table}");
    assert!(svg.contains("ring_segmented") && svg.contains("recursive_doubling") && svg.contains("ranks"));
    let (table, svg) = plot("allreduce --compare --ranks 8 --bytes 1Ki..1Mi");
    assert!(
        table.contains("- local: ") && !svg.contains(">\nlocal"),
        "what cannot be done is said and left out: {table}"
    );
    assert_eq!(svg.matches("\nauto\n").count(), 1, "what auto would choose is a line of its own");
    assert!(svg.contains("stroke=\"#000000\" stroke-width=\"5\""), "the thick black one");
    // One rank alone needs no time, which a logarithmic axis cannot show.
    let (table, svg) = plot("allreduce --compare --ranks 1..8 --bytes 64Ki --algorithm tree,ring");
    assert!(table.contains(" 0 s") && !table.contains(" ps"), "{table}");
    assert!(!svg.contains("\nauto\n"), "only some are compared");
    assert!(svg.contains("10 µs\n") && svg.matches("stroke-width=\"2\"").count() >= 4, "both have their lines: {svg}");
    let lines = output("broadcast --compare --ranks 8 --bytes 1Ki,64Ki --json");
    let messages = Collective::Broadcast.algorithms().iter().filter(|a| !a.uses.needs_shared_memory()).count();
    assert_eq!(lines.lines().count(), 2 * messages, "ranks on several hosts share no memory");
    let lines = output("broadcast --compare --ranks 8 --hosts 8 --bytes 1Ki,64Ki --json");
    assert_eq!(lines.lines().count(), 2 * Collective::Broadcast.algorithms().len());
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
}

#[test]
fn links_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("links.csv");
    std::fs::write(&file, "0,2,2\n2,0,1\n2,1,0\n").unwrap();
    let args = format!("broadcast --algorithm one_to_all --ranks 3 --bytes 1Mi --links {}", file.display());
    let time = |bandwidth: &str| json(&format!("{args} --bandwidth {bandwidth}"))["time_us"].as_f64().unwrap();
    assert!((time("1GB/s") - 10.0 - 1048.576).abs() < 1e-3, "both links of the root at once: {}", time("1GB/s"));
    std::fs::write(&file, "0,2,0\n2,0,1\n2,1,0\n").unwrap();
    refused(&args, 1, "rank 0 sends to rank 2, but there is no link between them");
}

#[test]
fn invalid_arguments_are_refused_at_once() {
    refused("allreduce --algorithm bitonic --ranks 4", 2, "has no algorithm \"bitonic\"; it has auto, ");
    refused("allreduce --algorithm ring_segmented", 2, "--ranks");
    refused("allreduc --ranks 4", 2, "the nearest is allreduce; there are allreduce, reduce");
    refused("allreduce --ranks 0", 2, "\"0\" is not a number of ranks");
    refused("reduce --ranks 4 --root 4", 2, "--root is 4, but the number of ranks is 4");
    refused("allreduce --ranks 4 --bandwidth fast", 2, "\"fast\" is not a bandwidth");
    refused("allreduce --ranks 4 --alpha 10", 2, "\"10\" is a number without a unit; write 10us");
    refused("allreduce --ranks 4 --bandwidth 10", 2, "\"10\" is a number without a unit; write 10GB/s");
    refused("allreduce --ranks 5 --hosts 2x2", 2, "2 hosts of 2 ranks are not the 5 ranks");
    refused("allreduce --ranks 4 --dims 3x2", 2, "--dims is a grid of 6 ranks, but --ranks says 4");
    refused("allreduce --ranks 2,4", 2, "are for --compare");
    refused("allreduce --ranks 2,4 --bytes 1Ki,2Ki --compare", 2, "not both");
    refused("allreduce --ranks 4 --links /nowhere.csv", 2, "cannot read it");
    refused("allreduce --algorithm local --ranks 4", 2, "local is for one process");
    refused("allreduce --algorithm ring_segmented --ranks 65536", 1, "need more than the 4096 MiB of memory");
    refused("allreduce --ranks 4294967295", 2, "4294967295 ranks are too many; there can be 65536");
    refused("allreduce --ranks 4 --hosts 4294967295x4294967295", 2, "ranks are too many");
    refused("allreduce --ranks 4 --dims 4294967295x4294967295x4294967295", 2, "has too many ranks");
    refused("allreduce --ranks 4 --bytes 99999999999Gi", 2, "\"99999999999Gi\" is too large");
    refused("allreduce --ranks 4 --bytes 8589934591Gi", 1, "elements; at most 4294967295 can be simulated");
    refused("allreduce --ranks 4 --bytes 1.5Mi", 2, "\"1.5Mi\" is not a size");
    refused("allreduce --ranks 4 --gamma slow", 2, "\"slow\" is neither a time for each byte");
    refused("allreduce --ranks 4 --element int9", 2, "no data type is named \"int9\"");
    refused("allreduce --ranks 4 --hosts 2x2 --intra 1us", 2, "\"1us\" is not a link; write 1us,100GB/s");
    refused("allreduce --ranks 4 --hosts 2x2 --intra 1us,1GB/s --intra-alpha 1us", 2, "cannot be used with");
    refused("allreduce --ranks 4 --compare --algorithm auto,ring", 2, "auto is none of them");
    refused("pairwise_exchange --ranks 3", 2, "it must be a power of two");
    refused("allreduce --algorithm ring_segmented --ranks 512 --memory 1Mi", 1, "need more than the 1 MiB");
    refused("allreduce --ranks 4 --trace /nowhere/a.json", 2, "--trace: cannot write /nowhere/a.json: No such file");
    refused("allreduce --ranks 4 --plot /nowhere/a.svg", 2, "--plot: cannot write /nowhere/a.svg: No such file");
    refused("allreduce --compare --ranks 2..4096 --bytes 256Mi --plot /tmp", 2, "cannot write /tmp: it is a directory");
}

/// With at most 4 GiB of memory.
#[test]
fn thousands_of_ranks_fit() {
    let ranks: u64 = Tier::from_environment().of(512, 4096, 4096);
    let mut command = simulate(&format!("allreduce --algorithm ring_segmented --ranks {ranks} --bytes 256Mi --json"));
    let limit = || {
        let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
        // SAFETY: setrlimit is async-signal-safe and reads one struct.
        match unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure only calls setrlimit.
    unsafe { command.pre_exec(limit) };
    let begin = std::time::Instant::now();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    println!("{ranks} ranks took {:.1} s (4,096 may take 20 s in a release build)", begin.elapsed().as_secs_f64());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["steps"], 2 * (ranks - 1));
    assert_eq!(value["bytes_sent_max"], 2 * (ranks - 1) * (256 << 20) / ranks);
    let (time, formula) = (value["time_us"].as_f64().unwrap(), value["formula_us"].as_f64().unwrap());
    assert!((0.95..=1.05).contains(&(formula / time)), "{time} µs, {formula} µs by its formula");
}

#[test]
fn a_trace_has_the_call_of_each_rank_and_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.json");
    let args = format!("allreduce --algorithm ring --ranks 4 --bytes 1Mi --trace {}", file.display());
    let time = json(&args)["time_us"].as_f64().unwrap();
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for rank in 0..4 {
        let own =
            |kind: &str| events.iter().filter(|event| event["pid"] == rank && event["cat"] == kind).collect::<Vec<_>>();
        let [call] = own("call")[..] else { panic!("{events:?}") };
        assert_eq!((&call["name"], call["ts"].as_f64()), (&"allreduce ring".into(), Some(0.0)));
        assert!(call["dur"].as_f64().unwrap() <= time + 1e-3, "{call} takes longer than {time} µs");
        let next = format!("send to {}", (rank + 1) % 4);
        assert!(own("send").len() >= 6 && own("send").iter().all(|step| step["name"] == *next), "{events:?}");
        assert!(own("receive").len() >= 6 && own("reduce").len() >= 3);
        let last =
            own("receive").iter().map(|s| s["ts"].as_f64().unwrap() + s["dur"].as_f64().unwrap()).fold(0.0, f64::max);
        assert!(last <= time + 1e-3, "{last} is after the end");
    }
}
