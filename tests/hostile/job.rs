//! The job that is attacked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use gloo_rs::collective::{Collective, Shape};
use gloo_rs::context::{Call, Connect, Context, ContextOptions};
use gloo_rs::log::LogCallback;
use gloo_rs::rendezvous::tcp::{TcpStore, TcpStoreOptions};
use gloo_rs::secret::JobToken;
use gloo_rs::transport::device::{Device, DeviceOptions};
use gloo_rs::types::DataType;

pub const SIZE: usize = 4;
const COUNT: usize = 2000;
pub const LONG: Duration = Duration::from_secs(60);

pub fn token() -> Option<JobToken> {
    Some(JobToken::new("the job's token"))
}

/// The log's lines.
#[derive(Clone, Default)]
pub struct Log(pub Arc<Mutex<Vec<String>>>);

impl Log {
    fn callback(&self) -> LogCallback {
        let lines = self.0.clone();
        Arc::new(move |_, text| lines.lock().unwrap().push(text.to_owned()))
    }
}

/// A job with threads as ranks that do allreduces until stopped.
pub struct Job {
    pub server: Arc<TcpStore>,
    pub contexts: Vec<Arc<Context>>,
    pub devices: Vec<Arc<Device>>,
    pub log: Log,
}

impl Job {
    pub fn start() -> Self {
        let log = Log::default();
        let options = TcpStoreOptions { token: token(), log: Some(log.callback()), ..Default::default() };
        let server = Arc::new(TcpStore::serve_with("127.0.0.1", 0, &options).unwrap());
        let (devices, contexts) = thread::scope(|scope| {
            let ranks: Vec<_> = (0..SIZE)
                .map(|rank| {
                    let (server, log) = (server.clone(), log.clone());
                    scope.spawn(move || {
                        let hostname = Some("127.0.0.1".into());
                        let log = Some(log.callback());
                        // The attacks are on connections, which ranks that share memory do not have.
                        let shared_memory = Some(false);
                        let options = DeviceOptions { hostname, log, shared_memory, ..Default::default() };
                        let device = Device::create(&options).unwrap();
                        let options = ContextOptions {
                            timeout: LONG,
                            connect: Connect::Full,
                            token: token(),
                            ..Default::default()
                        };
                        let context = Context::new(device.clone(), rank, SIZE, &options).unwrap();
                        context.connect(&*server).unwrap();
                        (device, context)
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        Self { server, contexts, devices, log }
    }

    /// Runs allreduces with checked results on all ranks while `meanwhile` runs; returns their number.
    pub fn work(&self, meanwhile: impl FnOnce()) -> usize {
        let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            for context in &self.contexts {
                let (stop, rounds) = (&stop, &rounds);
                scope.spawn(move || {
                    for round in 0.. {
                        // Rank 0 decides when all stop, by its contribution.
                        let last = context.rank() == 0 && stop.load(Ordering::SeqCst);
                        let sums = allreduce(context, round, last);
                        let expected = |i: usize| (0..SIZE).map(|rank| value(rank, round, i)).sum::<f32>();
                        (1..COUNT).for_each(|i| assert_eq!(sums[i], expected(i), "round {round}, element {i}"));
                        if sums[0] > 0.0 {
                            return;
                        }
                        if context.rank() == 0 {
                            rounds.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            // The ranks end even if it panics.
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
            stop.store(true, Ordering::SeqCst);
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        rounds.into_inner()
    }

    pub fn device(&self) -> SocketAddr {
        self.devices[1].addresses()[0]
    }

    pub fn store(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.server.port()))
    }
}

fn value(rank: usize, round: usize, i: usize) -> f32 {
    ((rank * 31 + round * 7 + i) % 1000) as f32
}

fn allreduce(context: &Context, round: usize, last: bool) -> Vec<f32> {
    let mut data: Vec<f32> = (0..COUNT).map(|i| value(context.rank(), round, i)).collect();
    data[0] = f32::from(u8::from(last));
    let bytes: *mut u8 = data.as_mut_ptr().cast();
    let call = Call {
        outputs: &[bytes],
        ..Call::new(
            Shape { inputs: 0, ..Shape::new(Collective::Allreduce, context.rank(), SIZE, COUNT) },
            DataType::Float32,
        )
    };
    // SAFETY: the vector is as long as the shape says and lives until the call returns.
    unsafe { context.run(&call) }.unwrap();
    data
}
