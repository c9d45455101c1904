//! Tests that every kind of store must pass, and tests with several processes.

mod conformance;
mod file;
mod processes;

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::callback::return_value;
#[cfg(feature = "redis")]
use super::redis::tests::RedisServer;
use super::{CallbackStore, FileStore, InProcessStore, PrefixStore, Store, StoreCallbacks, TcpStore};
use crate::error::{Error, ErrorKind};

/// A timeout that is never reached by a test that passes.
pub(super) const LONG: Duration = Duration::from_secs(60);

/// A store of one kind, which can be opened any number of times.
pub(super) struct Fixture {
    open: Box<dyn Fn() -> Arc<dyn Store>>,
    _keep: Box<dyn Any>,
}

impl Fixture {
    pub(super) fn open(&self) -> Arc<dyn Store> {
        (self.open)()
    }
}

fn in_process() -> Fixture {
    let store = InProcessStore::new();
    Fixture { open: Box::new(move || store.clone()), _keep: Box::new(()) }
}

fn file() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    Fixture { open: Box::new(move || Arc::new(FileStore::new(&path).unwrap())), _keep: Box::new(directory) }
}

fn tcp() -> Fixture {
    let server = TcpStore::serve("127.0.0.1", 0).unwrap();
    let port = server.port();
    let open = move || Arc::new(TcpStore::connect("127.0.0.1", port, LONG).unwrap()) as Arc<dyn Store>;
    Fixture { open: Box::new(open), _keep: Box::new(server) }
}

fn prefix() -> Fixture {
    let base = InProcessStore::new();
    Fixture { open: Box::new(move || Arc::new(PrefixStore::new("p", base.clone()))), _keep: Box::new(()) }
}

fn callback() -> Fixture {
    let base = InProcessStore::new();
    Fixture { open: Box::new(move || Arc::new(callbacks_over(&base, |_| {}))), _keep: Box::new(()) }
}

#[cfg(feature = "redis")]
fn redis() -> Fixture {
    over(RedisServer::start(&[]))
}

#[cfg(feature = "redis")]
fn rediss() -> Fixture {
    over(RedisServer::start_with_tls(&["--tls-auth-clients", "no"]))
}

#[cfg(feature = "redis")]
fn over(server: RedisServer) -> Fixture {
    let url = server.url("", "", "");
    Fixture { open: Box::new(move || super::url::open(&url, 1, LONG).unwrap()), _keep: Box::new(server) }
}

/// All of the functions below.
fn callbacks(user: *mut c_void) -> StoreCallbacks {
    StoreCallbacks {
        struct_size: size_of::<StoreCallbacks>(),
        waits_block: 0,
        user,
        set: Some(c_set),
        get: Some(c_get),
        wait: Some(c_wait),
        multi_get: Some(c_multi_get),
        multi_set: Some(c_multi_set),
        add: Some(c_add),
        append: Some(c_append),
        remove: Some(c_remove),
        destroy: Some(c_destroy),
    }
}

/// A store of C functions over `base`, after `change` has taken some away.
pub fn callbacks_over(base: &Arc<InProcessStore>, change: impl FnOnce(&mut StoreCallbacks)) -> CallbackStore {
    let mut callbacks = callbacks(Arc::into_raw(base.clone()).cast_mut().cast());
    change(&mut callbacks);
    // SAFETY: the callbacks cast `user` to the type that it has here; it is thread-safe and lives until `c_destroy`.
    unsafe { CallbackStore::new(callbacks) }.unwrap()
}

fn status(result: Result<(), Error>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(error) if error.kind() == ErrorKind::InvalidArgument => 1,
        Err(error) if error.kind() == ErrorKind::InvalidOperation => 2,
        Err(error) if error.kind() == ErrorKind::Timeout => 3,
        Err(_) => 11,
    }
}

fn timeout(milliseconds: i64) -> Duration {
    Duration::from_millis(milliseconds.try_into().unwrap())
}

unsafe fn base<'a>(user: *mut c_void) -> &'a InProcessStore {
    // SAFETY: `user` is the pointer that `callbacks_over` made from an `Arc`, whose reference `c_destroy` releases
    // last.
    unsafe { &*user.cast::<InProcessStore>() }
}

unsafe fn text<'a>(key: *const c_char) -> &'a str {
    // SAFETY: the callback store passes keys that end with a NUL byte.
    unsafe { CStr::from_ptr(key) }.to_str().unwrap()
}

unsafe fn slice<'a>(value: *const c_void, bytes: usize) -> &'a [u8] {
    // SAFETY: the callback store passes the pointer and length of one slice.
    unsafe { std::slice::from_raw_parts(value.cast(), bytes) }
}

unsafe extern "C" fn c_set(key: *const c_char, value: *const c_void, bytes: usize, user: *mut c_void) -> u32 {
    // SAFETY: `user` and `key` are those of the callback store.
    unsafe { status(base(user).set(text(key), slice(value, bytes))) }
}

pub unsafe extern "C" fn c_get(key: *const c_char, timeout_ms: i64, sink: *mut c_void, user: *mut c_void) -> u32 {
    // SAFETY: `user`, keys and sink are those of the callback store.
    unsafe {
        let value = base(user).get(text(key), timeout(timeout_ms));
        status(value.and_then(|value| return_value(sink, value.as_ptr().cast(), value.len())))
    }
}

pub unsafe extern "C" fn c_multi_get(
    keys: *const *const c_char,
    count: usize,
    timeout_ms: i64,
    sink: *mut c_void,
    user: *mut c_void,
) -> u32 {
    // SAFETY: `user`, keys and sink are those of the callback store.
    unsafe {
        let keys: Vec<_> = std::slice::from_raw_parts(keys, count).iter().map(|key| text(*key)).collect();
        let values = base(user).multi_get(&keys, timeout(timeout_ms));
        let give = |value: &Vec<u8>| return_value(sink, value.as_ptr().cast(), value.len());
        status(values.and_then(|values| values.iter().try_for_each(give)))
    }
}

unsafe extern "C" fn c_multi_set(
    keys: *const *const c_char,
    values: *const *const c_void,
    bytes: *const usize,
    count: usize,
    user: *mut c_void,
) -> u32 {
    // SAFETY: `user`, keys and sink are those of the callback store.
    unsafe {
        let set = |i: usize| base(user).set(text(*keys.add(i)), slice(*values.add(i), *bytes.add(i)));
        status((0..count).try_for_each(set))
    }
}

pub unsafe extern "C" fn c_wait(keys: *const *const c_char, count: usize, timeout_ms: i64, user: *mut c_void) -> u32 {
    // SAFETY: `user`, keys and sink are those of the callback store.
    unsafe {
        let keys: Vec<_> = std::slice::from_raw_parts(keys, count).iter().map(|key| text(*key)).collect();
        status(base(user).wait(&keys, timeout(timeout_ms)))
    }
}

unsafe extern "C" fn c_add(key: *const c_char, amount: i64, sum: *mut i64, user: *mut c_void) -> u32 {
    // SAFETY: `user`, `key` and `sum` are those of the callback store.
    unsafe { status(base(user).add(text(key), amount).map(|result| *sum = result)) }
}

unsafe extern "C" fn c_append(key: *const c_char, value: *const c_void, bytes: usize, user: *mut c_void) -> u32 {
    // SAFETY: `user` and `key` are those of the callback store.
    unsafe { status(base(user).append(text(key), slice(value, bytes))) }
}

unsafe extern "C" fn c_remove(key: *const c_char, existed: *mut bool, user: *mut c_void) -> u32 {
    // SAFETY: `user`, `key` and `existed` are those of the callback store.
    unsafe { status(base(user).delete(text(key)).map(|result| *existed = result)) }
}

unsafe extern "C" fn c_destroy(user: *mut c_void) {
    // SAFETY: the callback store calls this once, with the pointer that `callbacks_over` made from this type.
    drop(unsafe { Arc::from_raw(user.cast::<InProcessStore>()) });
}

#[test]
fn missing_callbacks_are_stood_in_for_or_named() {
    let base = InProcessStore::new();
    let store = callbacks_over(&base, |callbacks| {
        (callbacks.wait, callbacks.multi_get, callbacks.multi_set) = (None, None, None);
        (callbacks.append, callbacks.remove, callbacks.destroy) = (None, None, None);
    });
    store.multi_set(&[("a", b"1"), ("b", b"2")]).unwrap();
    store.wait(&["a", "b"], LONG).unwrap();
    assert_eq!(store.multi_get(&["b", "a"], LONG).unwrap(), [b"2", b"1"]);
    assert_eq!(store.add("n", 2).unwrap(), 2);
    let error = store.wait(&["a", "c"], Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.message().contains("\"c\""), "{error}");
    for (error, name) in [(store.append("a", b"x").unwrap_err(), "append"), (store.delete("a").unwrap_err(), "remove")]
    {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(name), "{error}");
    }
    drop(store);
    assert_eq!(Arc::strong_count(&base), 2, "destroy was not given and yet called");
    // SAFETY: the store has not called `destroy`, so the reference that `callbacks_over` made still counts.
    unsafe { Arc::decrement_strong_count(Arc::as_ptr(&base)) };
    drop(callbacks_over(&base, |_| {}));
    assert_eq!(Arc::strong_count(&base), 1, "destroy was not called");
}

#[test]
fn callbacks_that_return_too_few_or_too_many_values_are_reported() {
    unsafe extern "C" fn returns<const N: usize>(
        _: *const *const c_char,
        _: usize,
        _: i64,
        sink: *mut c_void,
        _: *mut c_void,
    ) -> u32 {
        for i in 0..N {
            // SAFETY: called as StoreCallbacks says.
            let _ = unsafe { return_value(sink, [i as u8].as_ptr().cast(), 1) };
        }
        0
    }
    let base = InProcessStore::new();
    for (multi_get, count) in [(returns::<0> as _, 0), (returns::<1> as _, 1), (returns::<3> as _, 3)] {
        let store = callbacks_over(&base, |callbacks| callbacks.multi_get = Some(multi_get));
        let error = store.multi_get(&["a", "b"], LONG).unwrap_err();
        let text = format!("`multi_get` succeeded and returned {count} values for 2 keys: \"a\", \"b\"");
        assert!(error.kind() == ErrorKind::Callback && error.message().contains(&text), "{error}");
    }
    let store = callbacks_over(&base, |callbacks| callbacks.multi_get = Some(returns::<2>));
    assert_eq!(store.multi_get(&["a", "b"], LONG).unwrap(), [[0], [1]]);
}

#[test]
fn faulty_callbacks_are_refused_or_reported() {
    unsafe extern "C" fn no_value(_: *const c_char, _: i64, _: *mut c_void, _: *mut c_void) -> u32 {
        0
    }
    unsafe extern "C" fn odd_status(_: *const c_char, _: *const c_void, _: usize, _: *mut c_void) -> u32 {
        4711
    }
    let base = InProcessStore::new();
    let store = callbacks_over(&base, |callbacks| {
        callbacks.get = Some(no_value);
        callbacks.set = Some(odd_status);
    });
    let error = store.get("k", LONG).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback);
    assert!(error.message().contains("returned 0 values for 1 keys") && error.message().contains("\"k\""), "{error}");
    let error = store.set("k", b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Callback);
    assert!(error.message().contains("`set` returned status 4711"), "{error}");

    type Change = fn(&mut StoreCallbacks);
    let wrong: [(Change, &str); 2] =
        [(|callbacks| callbacks.set = None, "`set`"), (|callbacks| callbacks.get = None, "`get`")];
    for (change, text) in wrong {
        let mut callbacks = callbacks(std::ptr::null_mut());
        change(&mut callbacks);
        // SAFETY: no function in them is called.
        let error = unsafe { CallbackStore::new(callbacks) }.err().unwrap();
        assert!(error.message().contains(text), "{error}");
    }

    // SAFETY: the function accepts null as the sink, and as a value of zero bytes.
    unsafe {
        assert!(return_value(std::ptr::null_mut(), std::ptr::null(), 0).is_err());
    }
}

/// Environment variable that makes this binary run as a helper process of a test; its value is the role.
const ROLE: &str = "GLOO_RS_TEST_ROLE";

pub(super) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Starts this binary again to run only `test` (its path without the crate) in the given role.
pub(super) fn spawn_self(test: &str, role: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// Waits for a helper process, and fails the test if it failed or does not end.
pub(super) fn finish(mut child: Child) {
    let end = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "a helper process failed: {status}");
            return;
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("a helper process did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
