//! Where memory runs out, calls fail with that reason, and the process goes on. The allocator of this program has only
//! so much memory for allocations that are not small; each call is repeated with more, from none on, until it needs no
//! more: every allocation of it fails once.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};
use std::time::Duration;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::error::{Error, ErrorKind, Result};
use gloo_rs::rendezvous::{CallbackStore, FileStore, InProcessStore, PrefixStore, Store, StoreCallbacks, TcpStore};
use gloo_rs::reserve::{SMALL_BYTES, try_collect, try_zeros};
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::tuner::file::Tuning;
use gloo_rs::types::DataType;

struct Limited;

#[global_allocator]
static ALLOCATOR: Limited = Limited;

/// Bytes left.
static LEFT: AtomicIsize = AtomicIsize::new(isize::MAX);
/// By how much the first allocation that failed exceeded what was left; 0 if none has failed.
static LACKED: AtomicIsize = AtomicIsize::new(0);

/// Takes `bytes` for an allocation; whether there are so many.
fn take(bytes: usize) -> bool {
    if bytes <= SMALL_BYTES {
        return true;
    }
    let left = LEFT.fetch_sub(bytes as isize, SeqCst);
    if left >= bytes as isize {
        return true;
    }
    give(bytes);
    let _ = LACKED.compare_exchange(0, bytes as isize - left, SeqCst, SeqCst);
    false
}

fn give(bytes: usize) {
    if bytes > SMALL_BYTES {
        LEFT.fetch_add(bytes as isize, SeqCst);
    }
}

// SAFETY: every call is passed on to the system's allocator, or fails.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        give(layout.size());
        // SAFETY: the caller upholds the contract, which is that of the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give(layout.size());
        // SAFETY: the caller upholds the contract, which is that of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Runs `call` with no memory, then with as much as lacked, and so on, each time after `prepare` with all memory, until
/// none lacks.
fn with_ever_more_memory<T>(what: &str, mut prepare: impl FnMut() -> T, mut call: impl FnMut(&T) -> Result<()>) {
    let (mut bytes, mut refusals) = (0, 0);
    loop {
        let prepared = prepare();
        LACKED.store(0, SeqCst);
        let before = LEFT.swap(bytes, SeqCst);
        let result = call(&prepared);
        let used = bytes - LEFT.load(SeqCst);
        LEFT.store(before - used, SeqCst);
        let lacked = LACKED.load(SeqCst);
        match result {
            Ok(()) if lacked == 0 => break,
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{what} with {bytes} bytes: {error}");
                // A callback returns only the kind.
                let why = ["no memory for ", "callback"].iter().any(|why| error.message().contains(why));
                assert!(why, "{what} with {bytes} bytes: {error}");
                assert!(lacked > 0, "{what} with {bytes} bytes: {error}");
                refusals += 1;
            }
        }
        bytes += lacked;
    }
    eprintln!("{what}: {refusals} allocations were refused");
}

const SECONDS: Duration = Duration::from_secs(60);
/// The bytes of a value that is not small, and more than a socket takes at once.
const VALUE: usize = 5 << 20;
/// The number of keys that makes every list of them not small.
const KEYS: usize = 5000;

fn calls(name: &str, store: &dyn Store) {
    let value = vec![7; VALUE];
    let names: Vec<String> = (0..KEYS).map(|key| format!("many/{key}")).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let pairs: Vec<(&str, &[u8])> = keys.iter().map(|key| (*key, &b"value"[..])).collect();
    let set = || store.set("key", &value).unwrap();
    let may_append = store.append("probe", b"").is_ok();

    with_ever_more_memory(&format!("{name}: set"), || (), |()| store.set("key", &value));
    set();
    with_ever_more_memory(
        &format!("{name}: get"),
        || (),
        |()| {
            assert!(store.get("key", SECONDS)? == value);
            Ok(())
        },
    );
    if may_append {
        with_ever_more_memory(&format!("{name}: append"), set, |()| store.append("key", &value));
        assert_eq!(store.get("key", SECONDS).unwrap().len(), 2 * VALUE);
    }
    with_ever_more_memory(&format!("{name}: multi_set"), || (), |()| store.multi_set(&pairs));
    with_ever_more_memory(
        &format!("{name}: multi_get"),
        || (),
        |()| {
            let values = store.multi_get(&keys, SECONDS)?;
            assert!(values.len() == KEYS && values.iter().all(|value| value == b"value"));
            Ok(())
        },
    );
    with_ever_more_memory(&format!("{name}: wait"), || (), |()| store.wait(&keys, SECONDS));
    let absent: Vec<String> = (0..KEYS).map(|key| format!("absent/{key}")).collect();
    let absent: Vec<&str> = absent.iter().map(String::as_str).collect();
    let (mut bytes, mut tries) = (0, 0);
    loop {
        LACKED.store(0, SeqCst);
        let before = LEFT.swap(bytes, SeqCst);
        let error = store.wait(&absent, Duration::ZERO).unwrap_err();
        LEFT.store(before, SeqCst);
        if error.kind() == ErrorKind::Timeout {
            // A store of callbacks without `wait` looks for one key after the other.
            let all = name == "callbacks" || error.message().contains("5000 of 5000 keys have no value (\"");
            assert!(all && error.message().contains("absent/0\""), "{error}");
            break;
        }
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{name}: {error}");
        (bytes, tries) = (bytes + LACKED.load(SeqCst), tries + 1);
        assert!(tries < 1000, "{name}: {error}");
    }
}

/// What a client makes a server keep for it.
fn claims(store: &TcpStore) {
    with_ever_more_memory(
        "tcp: claims",
        || store.delete("claims").map(drop).unwrap(),
        |()| (0..1000).try_for_each(|_| store.claim_within("claims", b"1", SECONDS)),
    );
}

/// A store of callbacks that keep everything in the store that `user` is.
fn callbacks(user: &Arc<InProcessStore>) -> CallbackStore {
    use gloo_rs::rendezvous::callback::return_value;
    use std::ffi::CStr;
    fn store<'a>(user: *mut c_void) -> &'a InProcessStore {
        // SAFETY: `user` is the store below, which lives as long as its callbacks are called.
        unsafe { &*user.cast::<InProcessStore>() }
    }
    fn status(result: Result<()>) -> u32 {
        result.map_or_else(|error| error.kind().number(), |()| 0)
    }
    unsafe extern "C" fn set(key: *const c_char, value: *const c_void, bytes: usize, user: *mut c_void) -> u32 {
        // SAFETY: the caller's contract.
        let (key, value) = unsafe { (CStr::from_ptr(key), std::slice::from_raw_parts(value.cast::<u8>(), bytes)) };
        status(store(user).set(key.to_str().unwrap(), value))
    }
    unsafe extern "C" fn get(key: *const c_char, timeout_ms: i64, sink: *mut c_void, user: *mut c_void) -> u32 {
        // SAFETY: the caller's contract.
        let key = unsafe { CStr::from_ptr(key) }.to_str().unwrap();
        match store(user).get(key, Duration::from_millis(timeout_ms as u64)) {
            // What this returns is not passed on, as careless programs do.
            Ok(value) => {
                // SAFETY: the sink of this call.
                let _ = unsafe { return_value(sink, value.as_ptr().cast(), value.len()) };
                0
            }
            Err(error) => error.kind().number(),
        }
    }
    let given = StoreCallbacks {
        struct_size: size_of::<StoreCallbacks>(),
        waits_block: 0,
        user: Arc::as_ptr(user).cast_mut().cast(),
        set: Some(set),
        get: Some(get),
        wait: None,
        multi_get: None,
        multi_set: None,
        add: None,
        append: None,
        remove: None,
        destroy: None,
    };
    // SAFETY: the functions keep to their contract.
    unsafe { CallbackStore::new(given) }.unwrap()
}

fn context(rank: usize, size: usize, eager: bool) -> Result<Arc<Context>> {
    let options =
        DeviceOptions { hostname: Some("127.0.0.1".into()), shared_memory: Some(!eager), ..Default::default() };
    let device = Device::create(&options)?;
    let tuning = Some(if eager { "measure" } else { "default" }.into());
    Context::new(device, rank, size, &ContextOptions { timeout: SECONDS, tuning, ..Default::default() })
}

fn allreduce(context: &Arc<Context>, inputs: usize) -> Result<()> {
    let input = [1f32; 1];
    let mut output = [0f32; 1];
    let pointers = try_collect((0..inputs).map(|_| Ok(input.as_ptr().cast())), "the test")?;
    let outputs = [output.as_mut_ptr().cast()];
    let shape = Shape::new(Collective::Allreduce, context.rank(), context.size(), 1);
    let call = Call { inputs: &pointers, outputs: &outputs, ..Call::new(Shape { inputs, ..shape }, DataType::Float32) };
    // SAFETY: the buffers are as long as the shape says and outlive the call.
    unsafe { context.run(&call) }?;
    assert!(output == [(inputs * context.size()) as f32]);
    Ok(())
}

/// Runs `each` on two connected ranks at the same time. Fails with what there was no memory for, if one rank failed for
/// that; of any other error that is the cause.
fn both(contexts: &[Arc<Context>; 2], each: impl Fn(&Arc<Context>) -> Result<()> + Sync) -> Result<()> {
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let each = &each;
        let run = |own: Arc<Context>| scope.spawn(move || each(&own).inspect_err(|_| own.close()));
        let threads = contexts.clone().map(run);
        threads.map(|thread| thread.join().unwrap()).into()
    });
    let errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let cause = errors.iter().find(|error| error.kind() == ErrorKind::ResourceExhausted).or(errors.first());
    cause.map_or(Ok(()), |error| Err(error.clone()))
}

fn pair(eager: bool) -> [Arc<Context>; 2] {
    let store = InProcessStore::new();
    std::thread::scope(|scope| {
        [0, 1]
            .map(|rank| {
                let store = store.clone();
                scope.spawn(move || {
                    let context = context(rank, 2, eager).unwrap();
                    context.connect(&*store).unwrap();
                    context
                })
            })
            .map(|thread| thread.join().unwrap())
    })
}

/// One test, since the memory is the process's.
#[test]
fn calls_without_memory_fail_with_that_reason_and_the_process_goes_on() {
    let in_process = InProcessStore::new();
    calls("in-process", &*in_process);
    calls("prefix", &PrefixStore::new("prefix", in_process.clone()));
    calls("callbacks", &callbacks(&in_process));
    let directory = tempfile::tempdir().unwrap();
    calls("file", &FileStore::new(directory.path()).unwrap());
    let server = TcpStore::serve("127.0.0.1", 0).unwrap();
    calls("tcp", &server);
    claims(&server);

    with_ever_more_memory(
        "a context of one rank",
        || (),
        |()| {
            let context = context(0, 1, true)?;
            context.connect(&*InProcessStore::new())?;
            allreduce(&context, 1)
        },
    );
    let alone = || {
        let context = context(0, 1, true).unwrap();
        context.connect(&*InProcessStore::new()).unwrap();
        context
    };
    with_ever_more_memory("an allreduce of many inputs", alone, |context| allreduce(context, KEYS));
    for eager in [true, false] {
        let name = if eager { "over TCP" } else { "in shared memory" };
        with_ever_more_memory(
            &format!("the first allreduce of two ranks {name}"),
            || pair(eager),
            |contexts| both(contexts, |context| allreduce(context, 1)),
        );
        with_ever_more_memory(
            &format!("a split {name}"),
            || pair(eager),
            |contexts| both(contexts, |context| context.split(Some(0), 0).map(drop)),
        );
    }
    with_ever_more_memory(
        "connecting, with measurements",
        || [0, 1].map(|rank| context(rank, 2, true).unwrap()),
        |contexts| {
            let store = InProcessStore::new();
            both(contexts, |context| context.connect(&*store))
        },
    );
    let tuning =
        format!("version = 1\nlinks = [{}]\n", vec![format!("[{}]", vec!["1"; 100].join(", ")); 100].join(", "));
    with_ever_more_memory("a tuning file", || (), |()| Tuning::parse(&tuning).map(drop));
    // A message that is queued, since no receive was posted for it.
    with_ever_more_memory("an unexpected message to this rank", alone, |context| {
        let mut large = try_zeros::<u8>(4 * SMALL_BYTES, "the test")?;
        // SAFETY: the vector outlives the buffer.
        let buffer = unsafe { context.unbound_buffer(large.as_mut_ptr(), large.len()) }?;
        buffer.send(0, 1, 0, 3 * SMALL_BYTES)?;
        buffer.wait_send(Some(SECONDS)).map(drop)
    });
}
