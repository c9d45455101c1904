//! The store in a directory: a full disk, a read-only one, no descriptors, and files of other programs in the
//! directory.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gloo_rs::error::ErrorKind;
use gloo_rs::rendezvous::{FileStore, Store, TcpStore};

use super::job::{LONG, SIZE, allreduce, connect, each, in_time, is};

/// Environment variable that gives a helper process its disk.
const DISK: &str = "GLOO_RS_TEST_DISK";

/// Runs an ignored test of this file in a process of its own, and fails if it fails. With a size, it has a file system
/// of that size mounted in its own namespace; the right to mount is root's, or that of a user namespace.
fn in_a_process(test: &str, disk: Option<&str>) {
    let directory = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let mut command = match disk {
        None => Command::new(program),
        Some(size) => {
            // SAFETY: no preconditions.
            let rights = if unsafe { libc::geteuid() } == 0 { "-m" } else { "-rm" };
            let mut command = Command::new("unshare");
            let script = format!("mount -t tmpfs -o size={size} none \"${DISK}\" && exec \"$0\" \"$@\"");
            command.args([rights, "sh", "-c", &script]).arg(program);
            command
        }
    };
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(DISK, directory.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let began = text.contains("running 1 test");
    assert!(began, "this test mounts: it needs root with CAP_SYS_ADMIN, or user namespaces: {}", text.trim());
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn disk() -> PathBuf {
    std::env::var_os(DISK).unwrap().into()
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_full_disk() {
    in_a_process("stores::file::on_a_full_disk", Some("320k"));
}

/// Not a test by itself: runs with a disk of 320 KiB.
#[test]
#[ignore = "run by a_full_disk"]
fn on_a_full_disk() {
    let path = disk();
    let store = FileStore::new(&path).unwrap();
    let full = ["No space left on device", path.to_str().unwrap()];
    let value = |byte: u8| vec![byte; 50_000];
    store.set("contested", &value(0)).unwrap();
    let filled = (0..10).find(|i| store.set(&format!("fill/{i}"), &value(1)).is_err()).expect("the disk is not small");
    let before = names(&path);

    // Another thread reads the value that writers fail to replace: a complete old or new value, never a partial one.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let reader = FileStore::new(&path).unwrap();
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) || reads == 0 {
                assert_eq!(reader.get("contested", Duration::ZERO).unwrap(), value(0), "a torn value");
                let error = reader.get("new", Duration::ZERO).unwrap_err();
                is(&error, ErrorKind::Timeout, &["\"new\""]);
                reads += 1;
            }
        });
        for _ in 0..100 {
            let error = store.set("contested", &value(2)).unwrap_err();
            is(&error, ErrorKind::Io, &["cannot write 50000 bytes for key \"contested\"", full[0], full[1]]);
            let error = store.append("contested", &value(2)).unwrap_err();
            is(&error, ErrorKind::Io, &["cannot write 100000 bytes for key \"contested\"", full[0], full[1]]);
            let error = store.set("new", &value(2)).unwrap_err();
            is(&error, ErrorKind::Io, &["cannot write 50000 bytes for key \"new\"", full[0], full[1]]);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    assert_eq!(names(&path), before, "failed writes left something behind");

    // The disk is completely full: each of four ranks gets an error that names its own key.
    let rest = fs::File::create(path.join("rest")).unwrap();
    let mut bytes = 64 << 10;
    while bytes > 0 {
        match std::io::Write::write(&mut &rest, &vec![7; bytes]) {
            Ok(_) => {}
            Err(_) => bytes /= 2,
        }
    }
    let errors = each(0..SIZE, |rank| in_time(LONG, || connect(&FileStore::new(&path).unwrap(), rank, SIZE, LONG)));
    for (rank, error) in errors.iter().enumerate() {
        let parts = [&format!("rank {rank}: "), "cannot write ", &format!("bytes for key \"host/{rank}\""), full[0]];
        is(error, ErrorKind::Io, &parts);
    }
    fs::remove_file(path.join("rest")).unwrap();
    // Each key of a rank takes a page, and another one while it is written.
    assert!(filled >= 2);
    assert!(["fill/0", "fill/1"].iter().all(|key| store.delete(key).unwrap()));
    each(0..SIZE, |rank| allreduce(&connect(&FileStore::new(&path).unwrap(), rank, SIZE, LONG).unwrap()));
}

#[test]
fn a_disk_that_is_read_only() {
    in_a_process("stores::file::on_a_disk_that_becomes_read_only", Some("320k"));
}

/// Not a test by itself: runs with a disk of its own.
#[test]
#[ignore = "run by a_disk_that_is_read_only"]
fn on_a_disk_that_becomes_read_only() {
    let path = disk();
    let store = FileStore::new(&path).unwrap();
    store.set("k", b"v").unwrap();
    assert!(Command::new("mount").args(["-o", "remount,ro", "none"]).arg(&path).status().unwrap().success());
    let place = path.to_str().unwrap();
    let error = store.set("k", b"w").unwrap_err();
    is(&error, ErrorKind::Io, &["set \"k\"", "Read-only file system", place]);
    assert_eq!(store.get("k", Duration::ZERO).unwrap(), b"v");
    let error = FileStore::new(&path).err().unwrap();
    is(&error, ErrorKind::Io, &["opening the store", "Read-only file system", place]);
    let error = FileStore::new(path.join("new")).err().unwrap();
    is(&error, ErrorKind::Io, &["cannot use the directory", "Read-only file system", place]);
}

#[test]
fn descriptors_run_out() {
    in_a_process("stores::file::without_descriptors", None);
}

/// Not a test by itself: runs alone in its process, since the limit is the process's.
#[test]
#[ignore = "run by descriptors_run_out"]
fn without_descriptors() {
    let path = disk();
    let file = FileStore::new(&path).unwrap();
    file.set("k", b"v").unwrap();
    let tcp = TcpStore::serve("127.0.0.1", 0).unwrap();
    let mut stores: Vec<(&dyn Store, &str, &str)> = vec![(&file, "set \"k\"", "\"k\"")];
    #[cfg(feature = "redis")]
    let server = super::redis_server::RedisServer::start(&[]);
    #[cfg(feature = "redis")]
    let redis = gloo_rs::rendezvous::url::open(&server.url("", "", ""), 0, LONG).unwrap();
    #[cfg(feature = "redis")]
    redis.set("k", b"v").unwrap();

    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let open = std::os::fd::AsRawFd::as_raw_fd(&fs::File::open("/dev/null").unwrap());
    // SAFETY: the structs live until the calls return. Open descriptors stay open; new ones get the lowest free number.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut before), 0);
        let limit = libc::rlimit { rlim_cur: open as libc::rlim_t, ..before };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    for (store, set, get) in stores.drain(..) {
        let place = store.describe();
        let error = in_time(Duration::ZERO, || store.set("k", b"w"));
        is(&error, ErrorKind::ResourceExhausted, &[set, "Too many open files", &place]);
        let error = in_time(Duration::ZERO, || store.get("k", LONG));
        is(&error, ErrorKind::ResourceExhausted, &[get, "Too many open files", &place]);
    }
    let error = FileStore::new(&path).err().unwrap();
    is(&error, ErrorKind::ResourceExhausted, &["Too many open files", path.to_str().unwrap()]);
    // These stores have one connection. A second call at the same time gets an error.
    let with_connection: &[&dyn Store] = &[
        &tcp,
        #[cfg(feature = "redis")]
        &*redis,
    ];
    for store in with_connection {
        store.set("k", b"w").unwrap();
        let place = store.describe();
        std::thread::scope(|scope| {
            let waits: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| in_time(Duration::from_secs(1), || store.get("absent", Duration::from_secs(1))))
                })
                .collect();
            let errors: Vec<_> = waits.into_iter().map(|wait| wait.join().unwrap()).collect();
            for error in errors.iter().filter(|error| error.kind() != ErrorKind::Timeout) {
                is(error, ErrorKind::ResourceExhausted, &["\"absent\"", "Too many open files", &place]);
            }
        });
    }
    // SAFETY: the struct lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &before) }, 0);
    file.set("k", b"w").unwrap();
    assert_eq!(file.get("k", Duration::ZERO).unwrap(), b"w");
    with_connection.iter().for_each(|store| assert_eq!(store.get("k", LONG).unwrap(), b"w"));
}

fn make_pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the string ends with a NUL byte and lives until the call returns.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// Unexpected files in a store's directory, each with its name.
fn litter(directory: &Path, name: impl Fn(&str) -> String) {
    let at = |kind: &str| directory.join(name(kind));
    fs::write(at("text"), "something else entirely, and long enough for a header").unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("directory").join("file"), "").unwrap();
    make_pipe(&at("pipe"));
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    symlink("/dev/zero", at("zeros")).unwrap();
    symlink(at("loop"), at("loop")).unwrap();
    symlink(at("pipe"), at("link_to_pipe")).unwrap();
    fs::File::create(at("huge")).unwrap().set_len(1 << 40).unwrap();
    fs::write(at("unreadable"), "").unwrap();
    fs::set_permissions(at("unreadable"), fs::Permissions::from_mode(0o000)).unwrap();
}

const LITTER: [&str; 10] =
    ["text", "empty", "directory", "pipe", "socket", "zeros", "loop", "link_to_pipe", "huge", "unreadable"];

#[test]
fn foreign_files_are_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    litter(path, |kind| kind.to_owned());
    // An earlier process that was killed while it wrote has left these files.
    litter(path, |kind| format!("gloo_rs.new.{kind}"));
    symlink("nowhere", path.join("dangling")).unwrap();
    let before = names(path);
    each(0..SIZE, |rank| allreduce(&connect(&FileStore::new(path).unwrap(), rank, SIZE, LONG).unwrap()));
    let store = FileStore::new(path).unwrap();
    for name in LITTER {
        is(&store.get(name, Duration::ZERO).unwrap_err(), ErrorKind::Timeout, &[name]);
    }
    let after: Vec<_> = names(path).into_iter().filter(|name| before.contains(name)).collect();
    assert_eq!(after, before);
}

/// The foreign files have the names of keys' files.
#[test]
fn foreign_files_with_a_keys_name_are_reported_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    litter(path, |kind| format!("gloo_rs.key.{kind}"));
    let store = FileStore::new(path).unwrap();
    for name in LITTER {
        let place = format!("{name:?}");
        for error in [in_time(Duration::ZERO, || store.get(name, LONG)), in_time(Duration::ZERO, || store.add(name, 1))]
        {
            let kind = if matches!(name, "socket" | "loop") { ErrorKind::Io } else { ErrorKind::Mismatch };
            // A user other than root may not read it, and gets that error instead.
            if name != "unreadable" || error.kind() != ErrorKind::Io {
                is(&error, kind, &[&place, path.to_str().unwrap()]);
            }
        }
        // A set replaces the file if possible.
        if name == "directory" {
            let error = store.set(name, b"v").unwrap_err();
            is(&error, ErrorKind::Io, &["cannot write 1 bytes for key \"directory\"", "Is a directory"]);
        } else {
            store.set(name, b"v").unwrap();
            assert_eq!(store.get(name, Duration::ZERO).unwrap(), b"v");
        }
    }
    // Ranks that connect report it, too: a directory is in place of rank 2's first key.
    fs::create_dir(path.join("gloo_rs.key.host%2F2")).unwrap();
    let (zero, two) = std::thread::scope(|scope| {
        let rank = |rank| move || in_time(LONG / 4, || connect(&FileStore::new(path).unwrap(), rank, SIZE, LONG));
        let (zero, two) = (scope.spawn(rank(0)), scope.spawn(rank(2)));
        (zero.join().unwrap(), two.join().unwrap())
    });
    is(&zero, ErrorKind::Mismatch, &["rank 0: ", "\"host/2\"", "not a regular file"]);
    is(&two, ErrorKind::Mismatch, &["rank 2: ", "\"host/2\"", "not a regular file"]);
}

#[test]
fn a_lock_that_is_not_a_file() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("gloo_rs.lock")).unwrap();
    let error = FileStore::new(directory.path()).err().unwrap();
    is(&error, ErrorKind::Io, &["cannot lock", "gloo_rs.lock", "Is a directory"]);
}

#[test]
fn entries_of_an_earlier_job_are_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let open = || FileStore::new(directory.path()).unwrap();
    each(0..SIZE, |rank| allreduce(&connect(&open(), rank, SIZE, LONG).unwrap()));
    let errors = each(0..SIZE, |rank| in_time(Duration::ZERO, || connect(&open(), rank, SIZE, LONG)));
    for (rank, error) in errors.iter().enumerate() {
        is(error, ErrorKind::Mismatch, &[&format!("rank {rank}"), "earlier job"]);
    }
}
