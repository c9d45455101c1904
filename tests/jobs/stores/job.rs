//! Ranks that are threads, and processes of this test program.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Context, ContextOptions};
use gloo_rs::error::{Error, ErrorKind};
use gloo_rs::rendezvous::Store;
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;

pub const SIZE: usize = 4;

/// A timeout that is never reached by a test that passes.
pub const LONG: Duration = Duration::from_secs(30);

/// Time that a failure may take beyond its timeout: the documented second, and a margin for a busy machine.
pub const SLACK: Duration = Duration::from_millis(1700);

pub fn device() -> Arc<Device> {
    Device::create(&DeviceOptions { hostname: Some("127.0.0.1".into()), ..Default::default() }).unwrap()
}

/// A rank of `size`, which connects over `store`.
pub fn connect(store: &dyn Store, rank: usize, size: usize, timeout: Duration) -> Result<Arc<Context>, Error> {
    let context = Context::new(device(), rank, size, &ContextOptions { timeout, ..Default::default() })?;
    context.connect(store)?;
    Ok(context)
}

/// Sums the ranks' numbers, and checks the result.
pub fn allreduce(context: &Context) {
    let input = [context.rank() as u64 + 1];
    let mut output = [0u64];
    let call = Call {
        inputs: &[input.as_ptr().cast()],
        outputs: &[output.as_mut_ptr().cast()],
        tag: 1,
        ..Call::new(Shape::new(Collective::Allreduce, context.rank(), context.size(), 1), DataType::Uint64)
    };
    // SAFETY: the buffers are as long as the shape says and live until the call returns.
    unsafe { context.run(&call) }.unwrap();
    assert_eq!(output[0], (context.size() * (context.size() + 1) / 2) as u64);
}

/// The results of `rank` for each of `ranks`, each on a thread of its own.
pub fn each<T: Send>(ranks: impl IntoIterator<Item = usize>, rank: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let rank = &rank;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Waits, without being a rank, until `ranks` have written their claims to `store`.
pub fn await_ranks(store: &dyn Store, ranks: &[usize]) {
    let keys: Vec<String> = ranks.iter().map(|rank| format!("host/{rank}")).collect();
    store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), LONG).unwrap();
}

pub fn is(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "{part:?} is not in: {error}");
    }
}

/// The error of `f`, in time.
pub fn in_time<T>(timeout: Duration, f: impl FnOnce() -> Result<T, Error>) -> Error {
    let began = Instant::now();
    let error = f().err().expect("it worked");
    assert!(began.elapsed() < timeout + SLACK, "gave up only after {:?}: {error}", began.elapsed());
    error
}

/// A process of this program that runs one ignored test, with `GLOO_RS_TEST_ROLE` set to `role`. It ends with this
/// process.
pub struct Helper {
    pub child: Child,
    _stdin: ChildStdin,
}

impl Helper {
    /// Starts it, and returns the line that it prints with [`tell`].
    pub fn start(test: &str) -> (Self, String) {
        Self::start_with(test, &[])
    }

    /// Like [`Job::start`], with environment variables.
    pub fn start_with(test: &str, variables: &[(&str, &str)]) -> (Self, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]).envs(variables.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line =
            lines.map_while(Result::ok).find_map(|line| line.split_once("TOLD:").map(|(_, told)| told.to_owned()));
        let helper = Self { _stdin: child.stdin.take().unwrap(), child };
        (helper, line.expect("the helper process ended too early"))
    }

    pub fn pause(&self) {
        let id = self.child.id() as i32;
        // SAFETY: the process is a child that has not been waited for, and `waitpid` accepts a null status.
        // It waits until the system reports that the process has stopped.
        unsafe {
            assert_eq!(libc::kill(id, libc::SIGSTOP), 0);
            assert_eq!(libc::waitpid(id, std::ptr::null_mut(), libc::WUNTRACED), id);
        }
    }

    pub fn progress(&self) {
        // SAFETY: the process is a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, libc::SIGCONT) }, 0);
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In a helper process: prints a line for the test, and waits for the end of its input.
pub fn tell(line: &str) {
    println!("\nTOLD:{line}");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}
