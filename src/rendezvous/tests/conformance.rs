//! The behaviour that all kinds of stores have in common.

use std::thread;
use std::time::{Duration, Instant};

use super::super::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use super::{Fixture, LONG};
use crate::error::{Error, ErrorKind};

const SHORT: Duration = Duration::from_millis(60);

macro_rules! for_every_kind {
    ($($check:ident)*) => {
        for_every_kind! { @ [in_process file tcp prefix callback] ($($check)*) }
        #[cfg(feature = "redis")]
        for_every_kind! { @ [redis rediss] ($($check)*) }
    };
    (@ [$($kind:ident)*] $checks:tt) => { $(for_every_kind! { % $kind $checks })* };
    (% $kind:ident ($($check:ident)*)) => {
        mod $kind {
            $(#[test] fn $check() { super::$check(&super::super::$kind()); })*
        }
    };
}

for_every_kind! {
    the_last_value_set_is_read
    a_get_waits_for_its_value
    a_get_that_waits_does_not_stop_a_set_on_the_same_handle
    timeouts_name_the_keys
    a_wait_ends_with_the_last_key
    all_waiting_threads_get_the_key
    additions_count
    concurrent_additions_are_all_counted
    concurrent_appends_are_all_kept
    many_keys_at_once
    deleted_keys_are_gone
    unusual_keys_are_distinct
    invalid_keys_are_refused
    values_have_a_limit
    ten_thousand_keys
    empty_lists_of_keys
}

fn is(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "{part:?} is not in: {error}");
    }
}

/// The error of `f`; asserts that it took at least `timeout`, and less than what forgets it.
fn fails_after<T>(timeout: Duration, f: impl FnOnce() -> Result<T, Error>) -> Error {
    let began = Instant::now();
    let error = f().err().expect("nothing was there to be found");
    assert!(began.elapsed() >= timeout, "gave up after {:?} of {timeout:?}", began.elapsed());
    assert!(began.elapsed() < LONG, "gave up only after {:?}", began.elapsed());
    error
}

fn the_last_value_set_is_read(fixture: &Fixture) {
    let (one, two) = (fixture.open(), fixture.open());
    let large: Vec<u8> = (0..1_000_003u32).map(|i| ((i * 31) >> 3) as u8).collect();
    for value in [&b"first"[..], b"", &[0, 255, b'\n', 0], &large, b"last"] {
        one.set("key", value).unwrap();
        assert_eq!(two.get("key", LONG).unwrap(), value);
        assert_eq!(one.get("key", Duration::ZERO).unwrap(), value);
    }
}

fn a_get_waits_for_its_value(fixture: &Fixture) {
    let (one, two) = (fixture.open(), fixture.open());
    thread::scope(|scope| {
        let get = scope.spawn(|| one.get("key", LONG).unwrap());
        thread::sleep(SHORT);
        two.set("key", b"value").unwrap();
        assert_eq!(get.join().unwrap(), b"value");
        // An append and an addition create a key too, and the longest timeout is accepted.
        let waits = [
            scope.spawn(|| one.get("appended", Duration::MAX).unwrap()),
            scope.spawn(|| one.get("added", Duration::from_secs(u64::MAX)).unwrap()),
        ];
        thread::sleep(SHORT);
        two.append("appended", b"a").unwrap();
        two.add("added", 7).unwrap();
        let end = Instant::now() + LONG;
        while Instant::now() < end && !waits.iter().all(|wait| wait.is_finished()) {
            thread::sleep(Duration::from_millis(5));
        }
        // If a get did not wake, wake it now with the wrong value, so that the test fails and ends.
        two.multi_set(&[("appended", b"late"), ("added", b"late")]).unwrap();
        let got = waits.map(|wait| wait.join().unwrap());
        assert_eq!(got, [b"a", b"7"]);
    });
}

fn a_get_that_waits_does_not_stop_a_set_on_the_same_handle(fixture: &Fixture) {
    let store = fixture.open();
    thread::scope(|scope| {
        let gets: Vec<_> = (0..6).map(|_| scope.spawn(|| store.get("key", LONG).unwrap())).collect();
        thread::sleep(SHORT);
        store.set("key", b"value").unwrap();
        gets.into_iter().for_each(|get| assert_eq!(get.join().unwrap(), b"value"));
    });
}

fn timeouts_name_the_keys(fixture: &Fixture) {
    let store = fixture.open();
    let here = store.describe();
    let here = here.split(" under").next().unwrap();
    for timeout in [Duration::ZERO, SHORT] {
        let error = fails_after(timeout, || store.get("absent", timeout));
        is(&error, ErrorKind::Timeout, &["absent", here, " s"]);
        let error = fails_after(timeout, || store.wait(&["absent"], timeout));
        is(&error, ErrorKind::Timeout, &["absent", here, " s"]);
    }
    store.set("there", b"").unwrap();
    let names: Vec<String> = (0..12).map(|i| format!("absent-{i}")).collect();
    let keys: Vec<&str> = ["there"].into_iter().chain(names.iter().map(String::as_str)).collect();
    for error in [fails_after(SHORT, || store.wait(&keys, SHORT)), fails_after(SHORT, || store.multi_get(&keys, SHORT))]
    {
        // A callback store cannot know which keys its `wait` callback did not find.
        let parts = if here.contains("caller's") {
            vec!["absent-0", "absent-6", "5 more"]
        } else {
            vec!["12 of 13", "absent-0", "absent-7", "4 more"]
        };
        is(&error, ErrorKind::Timeout, &parts);
        assert!(!error.message().contains("absent-9"), "{error}");
    }
}

fn a_wait_ends_with_the_last_key(fixture: &Fixture) {
    let (one, two) = (fixture.open(), fixture.open());
    let names: Vec<String> = (0..20).map(|i| format!("key-{i}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    thread::scope(|scope| {
        let wait = scope.spawn(|| one.wait(&keys, LONG).unwrap());
        let values = scope.spawn(|| one.multi_get(&keys, LONG).unwrap());
        // In an order that is neither that of the wait nor its reverse; one key is set, deleted, and set again.
        for i in 0..19 {
            two.set(keys[i * 7 % 20], keys[i * 7 % 20].as_bytes()).unwrap();
        }
        assert!(two.delete(keys[0]).unwrap());
        thread::sleep(SHORT);
        assert!(!wait.is_finished() && !values.is_finished(), "the wait ended before the last key came");
        two.set(keys[0], keys[0].as_bytes()).unwrap();
        two.set(keys[19 * 7 % 20], keys[19 * 7 % 20].as_bytes()).unwrap();
        wait.join().unwrap();
        let values = values.join().unwrap();
        assert!(values.iter().zip(&keys).all(|(value, key)| value == key.as_bytes()));
    });
}

fn all_waiting_threads_get_the_key(fixture: &Fixture) {
    let value: Vec<u8> = (0..100_000u32).map(|i| ((i * 7) >> 2) as u8).collect();
    thread::scope(|scope| {
        for _ in 0..24 {
            let store = fixture.open();
            let value = &value;
            scope.spawn(move || assert!(store.get("key", LONG).unwrap() == *value));
        }
        thread::sleep(SHORT);
        fixture.open().set("key", &value).unwrap();
    });
}

fn additions_count(fixture: &Fixture) {
    let store = fixture.open();
    assert_eq!(store.add("n", 5).unwrap(), 5);
    assert_eq!(store.add("n", -12).unwrap(), -7);
    assert_eq!(store.add("n", 0).unwrap(), -7);
    assert_eq!(store.get("n", LONG).unwrap(), b"-7");
    store.set("n", b"41").unwrap();
    assert_eq!(store.add("n", 1).unwrap(), 42);

    store.set("text", b"forty-two").unwrap();
    is(&store.add("text", 1).unwrap_err(), ErrorKind::InvalidOperation, &["text"]);
    assert_eq!(store.get("text", LONG).unwrap(), b"forty-two");
    assert_eq!(store.add("full", i64::MAX).unwrap(), i64::MAX);
    is(&store.add("full", 1).unwrap_err(), ErrorKind::InvalidOperation, &["full"]);
    assert_eq!(store.add("full", i64::MIN).unwrap(), -1);
}

fn concurrent_additions_are_all_counted(fixture: &Fixture) {
    thread::scope(|scope| {
        for _ in 0..4 {
            // Two threads on each handle.
            let store = fixture.open();
            for _ in 0..2 {
                let store = store.clone();
                scope.spawn(move || (0..50).for_each(|_| assert!(store.add("n", 3).unwrap() % 3 == 0)));
            }
        }
    });
    assert_eq!(fixture.open().add("n", 0).unwrap(), 4 * 2 * 50 * 3);
}

fn concurrent_appends_are_all_kept(fixture: &Fixture) {
    thread::scope(|scope| {
        for writer in 0..4u8 {
            let store = fixture.open();
            scope.spawn(move || (0..40u8).for_each(|i| store.append("log", &[writer, i, i ^ writer]).unwrap()));
        }
    });
    let log = fixture.open().get("log", LONG).unwrap();
    assert_eq!(log.len(), 4 * 40 * 3);
    let mut next = [0; 4];
    for entry in log.chunks(3) {
        let (writer, i) = (entry[0], entry[1]);
        assert_eq!((i, entry[2]), (next[usize::from(writer)], i ^ writer), "an entry is torn or out of order");
        next[usize::from(writer)] += 1;
    }
}

fn many_keys_at_once(fixture: &Fixture) {
    let (one, two) = (fixture.open(), fixture.open());
    one.multi_set(&[("a", b"1"), ("b", b""), ("c", b"3"), ("a", b"4")]).unwrap();
    two.wait(&["a", "b", "c"], LONG).unwrap();
    let values = two.multi_get(&["c", "a", "b", "c"], LONG).unwrap();
    assert_eq!(values, [&b"3"[..], b"4", b"", b"3"]);
}

fn deleted_keys_are_gone(fixture: &Fixture) {
    let (one, two) = (fixture.open(), fixture.open());
    assert!(!one.delete("key").unwrap());
    one.set("key", b"value").unwrap();
    assert!(two.delete("key").unwrap());
    assert!(!one.delete("key").unwrap());
    is(&one.get("key", Duration::ZERO).unwrap_err(), ErrorKind::Timeout, &["key"]);
    two.append("key", b"new").unwrap();
    assert_eq!(one.get("key", LONG).unwrap(), b"new");
}

fn unusual_keys_are_distinct(fixture: &Fixture) {
    let store = fixture.open();
    // Leaves room for the prefix of a prefix store.
    let long = "é".repeat(MAX_KEY_BYTES / 2 - 4);
    let longest: Vec<String> = (0..3).map(|i| format!("{long}{i}")).collect();
    let just_long: Vec<String> = (150..240).map(|n| "x".repeat(n)).collect();
    let fixed = [
        ".",
        "..",
        "/",
        "//",
        "a/b",
        "a/../b",
        "../../escape",
        "a",
        "A",
        "a.",
        "%",
        "%41",
        "%2F",
        "%25",
        " ",
        "a b",
        "\n",
        "\t",
        "\"",
        "'",
        "\\",
        "\u{1}",
        "\u{7f}",
        "é",
        "e\u{301}",
        "ключ",
        "键",
        "🔑",
        "*",
        "?",
        "-rf",
        "~",
        "gloo_rs.lock",
        "gloo_rs.new.0000000000000000",
        "gloo_rs.key.a",
        "tcp://127.0.0.1:1/x",
    ];
    let keys: Vec<&str> = fixed.into_iter().chain(longest.iter().chain(&just_long).map(String::as_str)).collect();
    for (i, key) in keys.iter().enumerate() {
        store.set(key, i.to_string().as_bytes()).unwrap();
    }
    store.wait(&keys, LONG).unwrap();
    for (i, value) in fixture.open().multi_get(&keys, LONG).unwrap().iter().enumerate() {
        assert_eq!(value, i.to_string().as_bytes(), "of {:?}", keys[i]);
    }
    for key in &keys {
        assert!(store.delete(key).unwrap(), "{key:?} was not there");
    }
}

fn invalid_keys_are_refused(fixture: &Fixture) {
    let store = fixture.open();
    let long = "k".repeat(MAX_KEY_BYTES + 1);
    for (key, part) in [("", "empty"), ("a\0b", "NUL"), (&long, "4097 bytes")] {
        // A prefix makes a long key longer.
        let part = if key.len() > 10 { " bytes, and the longest may have 4096" } else { part };
        for result in [
            store.set(key, b"").err(),
            store.get(key, LONG).err(),
            store.wait(&["there", key], LONG).err(),
            store.add(key, 1).err(),
            store.append(key, b"").err(),
            store.multi_get(&[key], LONG).err(),
            store.multi_set(&[("there", b""), (key, b"")]).err(),
            store.delete(key).err(),
        ] {
            is(&result.expect("the key was taken"), ErrorKind::InvalidArgument, &[part]);
        }
        store.set("there", b"").unwrap();
    }
}

fn values_have_a_limit(fixture: &Fixture) {
    let store = fixture.open();
    let mut value = vec![0; MAX_VALUE_BYTES + 1];
    value.chunks_mut(256).zip(0..).for_each(|(chunk, n)| chunk.fill(n as u8));
    for result in [store.set("key", &value), store.append("key", &value), store.multi_set(&[("key", &value)])] {
        is(&result.unwrap_err(), ErrorKind::InvalidArgument, &["key\"", "67108865 bytes"]);
    }
    let value = &value[..MAX_VALUE_BYTES];
    store.multi_set(&[("key", value), ("key", value)]).unwrap();
    let error = store.append("key", b"x").unwrap_err();
    is(&error, ErrorKind::InvalidArgument, &["key"]);
    // More than one reply can contain.
    let got = store.multi_get(&["key", "key"], LONG).unwrap();
    assert!(got[0] == value && got[1] == value);
}

fn ten_thousand_keys(fixture: &Fixture) {
    let (one, two) = (fixture.open(), fixture.open());
    let names: Vec<String> = (0..10_000).map(|i| format!("rank/{i}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (*key, &key.as_bytes()[5..])).collect();
    thread::scope(|scope| {
        let wait = scope.spawn(|| two.multi_get(&keys, LONG).unwrap());
        // In reverse order: the key that the wait checks first is set last.
        for pairs in pairs.rchunks(1000) {
            one.multi_set(pairs).unwrap();
        }
        let values = wait.join().unwrap();
        assert!(values.len() == 10_000 && values.iter().zip(&pairs).all(|(value, pair)| value == pair.1));
    });
    two.wait(&keys, Duration::ZERO).unwrap();
}

fn empty_lists_of_keys(fixture: &Fixture) {
    let store = fixture.open();
    store.wait(&[], Duration::ZERO).unwrap();
    store.multi_set(&[]).unwrap();
    assert!(store.multi_get(&[], Duration::ZERO).unwrap().is_empty());
}
