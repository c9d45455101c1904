//! Behaviour that is specific to the store in a directory.

use std::fs::{self, File};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::super::{FileStore, Store};
use super::{LONG, finish, role, spawn_self};
use crate::error::ErrorKind;

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn foreign_files_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::write(path.join("key"), "foreign").unwrap();
    fs::write(path.join("gloo_rs.new.abandoned"), "half a val").unwrap();
    fs::create_dir(path.join("gloo_rs.key.")).unwrap();
    let before = names(path);

    let store = FileStore::new(path).unwrap();
    assert_eq!(store.get("key", Duration::ZERO).unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(store.get("new.abandoned", Duration::ZERO).unwrap_err().kind(), ErrorKind::Timeout);
    store.set("key", b"ours").unwrap();
    assert_eq!(store.get("key", LONG).unwrap(), b"ours");
    assert!(store.delete("key").unwrap());

    assert_eq!(fs::read(path.join("key")).unwrap(), b"foreign");
    let after: Vec<_> = names(path).into_iter().filter(|name| name != "gloo_rs.lock").collect();
    assert_eq!(after, before);
}

#[test]
fn a_file_that_is_not_a_value_of_the_key_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let store = FileStore::new(directory.path()).unwrap();
    let path = directory.path().join("gloo_rs.key.k");
    let mut lengths = b"gloo_rs\x01".to_vec();
    lengths.extend_from_slice(&[255; 12]);
    let mut long = b"gloo_rs\x01\x01\0\0\0".to_vec();
    long.extend_from_slice(&[255; 8]);
    long.push(b'k');
    for (contents, part) in [
        (&b""[..], "too short"),
        (b"gloo_rs", "too short"),
        (b"something else entirely", "not written by a store"),
        (&lengths, "not written by a store"),
        (&long, "impossible length"),
    ] {
        fs::write(&path, contents).unwrap();
        let error = store.get("k", Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains(part) && error.message().contains("\"k\""), "{error}");
    }
    store.set("k", b"12345").unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = store.get("k", Duration::ZERO).unwrap_err();
    assert!(error.message().contains("whole value") && error.message().contains("\"k\""), "{error}");
}

#[test]
fn keys_whose_hashes_collide_are_not_mixed_up() {
    let directory = tempfile::tempdir().unwrap();
    let store = FileStore::new(directory.path()).unwrap();
    let (one, two) = ("1".repeat(1000), "2".repeat(1000));
    store.set(&one, b"1").unwrap();
    let of_one = names(directory.path()).into_iter().find(|name| name.starts_with("gloo_rs.hash.")).unwrap();
    store.set(&two, b"2").unwrap();
    let of_two = names(directory.path()).into_iter().find(|name| name.contains("hash") && *name != of_one).unwrap();
    fs::rename(directory.path().join(of_one), directory.path().join(of_two)).unwrap();
    for error in [
        store.get(&two, Duration::ZERO).unwrap_err(),
        store.set(&two, b"3").unwrap_err(),
        store.delete(&two).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.message().contains("another key with the same hash"), "{error}");
    }
}

#[test]
fn a_writer_waits_for_the_lock() {
    let directory = tempfile::tempdir().unwrap();
    let store = FileStore::new(directory.path()).unwrap();
    let lock = File::open(directory.path().join("gloo_rs.lock")).unwrap();
    lock.lock().unwrap();
    thread::scope(|scope| {
        let set = scope.spawn(|| store.set("k", b"v"));
        thread::sleep(Duration::from_millis(50));
        assert!(!set.is_finished(), "a set did not wait for the lock");
        assert_eq!(
            store.get("k", Duration::ZERO).unwrap_err().kind(),
            ErrorKind::Timeout,
            "a read waited for the lock"
        );
        lock.unlock().unwrap();
        set.join().unwrap().unwrap();
    });
    assert_eq!(store.get("k", Duration::ZERO).unwrap(), b"v");
}

#[test]
fn a_writer_does_not_wait_as_long_as_another_thread() {
    let directory = tempfile::tempdir().unwrap();
    let store = FileStore::new(directory.path()).unwrap();
    let lock = File::open(directory.path().join("gloo_rs.lock")).unwrap();
    lock.lock().unwrap();
    thread::scope(|scope| {
        let patient = scope.spawn(|| store.set_within("k", b"v", LONG));
        thread::sleep(Duration::from_millis(50));
        let error = store.set_within("k", b"w", Duration::from_millis(50)).unwrap_err();
        assert!(error.kind() == ErrorKind::Timeout && error.message().contains("is still locked after "), "{error}");
        lock.unlock().unwrap();
        patient.join().unwrap().expect("it still waits when the other has given up");
    });
    assert_eq!(store.get("k", Duration::ZERO).unwrap(), b"v");
}

#[test]
fn the_error_names_a_directory_that_cannot_be_created() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "").unwrap();
    let path = directory.path().join("file/store");
    let error = FileStore::new(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.message().contains(path.to_str().unwrap()), "{error}");
    FileStore::new(directory.path().join("made/on/the/way")).unwrap().set("k", b"v").unwrap();
}

/// A limit on the size of files makes a write fail in the middle, like a full disk.
#[test]
fn a_failed_write_leaves_the_old_value() {
    let Some(directory) = role() else {
        let directory = tempfile::tempdir().unwrap();
        let test = "rendezvous::tests::file::a_failed_write_leaves_the_old_value";
        finish(spawn_self(test, directory.path().to_str().unwrap()));
        // The limit applied only to the helper process.
        let store = FileStore::new(directory.path()).unwrap();
        assert_eq!(store.get("k", Duration::ZERO).unwrap(), b"old and more");
        return;
    };
    let limit = libc::rlimit { rlim_cur: 100_000, rlim_max: 100_000 };
    // SAFETY: the struct lives until the call returns; no other code of this process, which runs only this test, needs
    // the limit.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    let store = FileStore::new(&directory).unwrap();
    store.set("k", b"old").unwrap();
    let before = names(Path::new(&directory));
    for error in [
        store.set("k", &[7; 200_000]).unwrap_err(),
        store.append("k", &[7; 200_000]).unwrap_err(),
        store.set("new", &[7; 200_000]).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(
            error.message().contains("cannot write 20000") && error.message().contains("File too large"),
            "{error}"
        );
    }
    assert_eq!(names(Path::new(&directory)), before, "a failed write left something behind");
    assert_eq!(store.get("k", Duration::ZERO).unwrap(), b"old");
    store.append("k", b" and more").unwrap();
}
