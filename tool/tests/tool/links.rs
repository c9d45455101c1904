//! `gloo-rs tune` over several hosts (network namespaces).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use gloo_rs::collective::Collective;
use gloo_rs::tuner::file::Tuning;
use serde_json::Value;

use crate::launcher::{gloo_rs, text};
use crate::netns::{Namespace, Network, ran_as_root_elsewhere};

/// Connects to hosts as ssh does: those named by the addresses of namespaces.
fn ssh(folder: &Path, hosts: &[Namespace]) -> String {
    let cases: String =
        (1..=hosts.len()).map(|number| format!("10.77.0.{number}) net={} ;;\n", hosts[number - 1].path())).collect();
    let script = folder.join("ssh");
    let text = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\ncase $2 in\n{cases}esac\n\
         exec nsenter --net=\"$net\" sh -c \"$3\"\n"
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script.display().to_string()
}

#[test]
fn tune_over_several_hosts_writes_a_file_that_jobs_use() {
    if ran_as_root_elsewhere("links::tune_over_several_hosts_writes_a_file_that_jobs_use") {
        return;
    }
    let (_network, hosts) = Network::of_hosts(2);
    hosts.iter().for_each(|host| host.limit("eth0", "500mbit", "32kb"));
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (ssh, list) = (ssh(folder.path(), &hosts), file("hosts.txt"));
    std::fs::write(&list, "10.77.0.1 slots=2\n10.77.0.2 slots=2\n").unwrap();
    let finish = |command: &mut Command| -> Vec<Value> {
        let output: Output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let clean = |command: &mut Command| {
        ["GLOO_RS_TUNING", "GLOO_RS_ALGORITHM", "GLOO_RS_SOCKET_IFNAME"].iter().for_each(|name| {
            command.env_remove(name);
        });
    };
    let job = |line: &str, tuning: Option<&Path>| {
        let tool = env!("CARGO_BIN_EXE_gloo-rs");
        let mut args = vec!["run", "--hosts", list.to_str().unwrap(), "--ssh", &ssh, "--no-prefix", "--", tool];
        args.extend(line.split_whitespace());
        let mut command = gloo_rs(&args);
        clean(&mut command);
        finish(command.envs(tuning.map(|path| ("GLOO_RS_TUNING", path))))
    };
    let output = file("t.toml");
    let tune = format!(
        "tune --collective allreduce,broadcast --sizes 4,16Ki --budget 100 --topology --json --output {} --plot {}",
        output.display(),
        file("times.svg").display()
    );
    let measured = |tuning: &Tuning| {
        let right = |(index, &link): (usize, &u32)| match (index / 4, index % 4) {
            (from, to) if from == to => link == 0,
            (from, to) if from / 2 == to / 2 => link > 0,
            // Long messages cannot be faster than the link, and a busy machine only makes them slower.
            _ => (1..100).contains(&link),
        };
        let ends = tuning.local.is_some() && tuning.remote.is_some();
        ends && tuning.links.len() == 16 && tuning.links.iter().enumerate().all(right)
    };
    let mut rows = job(&tune, None);
    let summary = rows.pop().unwrap();
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert!(rows.iter().all(|row| row["ranks"] == 4 && row["verified"] == true), "{rows:?}");
    let links = summary["links"].as_array().unwrap().iter().map(|link| link["link"].as_str().unwrap());
    assert_eq!(links.collect::<Vec<_>>(), ["local", "remote"]);
    assert!(summary["constants"]["overhead_us"].as_f64().unwrap() > 0.0, "{summary}");
    assert!(file("times-allreduce.svg").exists() && file("times-broadcast.svg").exists());
    let mut tuning = Tuning::read(&output).unwrap();
    assert!(measured(&tuning), "500 Mbit/s were taken for {tuning:#?}");
    let remote = tuning.remote.unwrap();

    // First the measured file, then an edited one: if all ranks agree on its unusual values, the file has been read.
    for odd in [None, Some("mesh_2d")] {
        for choice in &mut tuning.choices {
            choice.algorithm = odd.map_or(choice.algorithm.clone(), str::to_owned);
        }
        tuning.choices.retain(|choice| odd.is_none() || choice.collective == Collective::Allreduce);
        let path = file("used.toml");
        std::fs::write(&path, tuning.to_toml()).unwrap();
        let rows = job("bench allreduce --sizes 4,16Ki --warmup 1 --iterations 2 --json", Some(&path));
        for row in rows {
            let bytes = row["bytes"].as_u64().unwrap();
            let choice = &tuning.choice(Collective::Allreduce, 4, 2, bytes as usize).unwrap().algorithm;
            assert_eq!(&row["algorithm"], choice, "{row}");
            // The explanation agrees with what runs in this environment.
            let mut explain =
                gloo_rs(&["info", "--json", "--hosts", "2x2", "--explain", "allreduce", &bytes.to_string()]);
            clean(&mut explain);
            let explained = finish(explain.env("GLOO_RS_TUNING", &path)).remove(0);
            assert_eq!(&explained["chosen"]["algorithm"], choice, "{explained}");
            assert_eq!(explained["remote"]["bandwidth"], remote.bandwidth, "{explained}");
        }
    }
}
