//! A rank: a process that makes random calls until one fails, goes on with the other survivors, and waits for its next
//! order.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gloo_rs::collective::Collective;
use gloo_rs::context::{Context, ContextOptions};
use gloo_rs::error::{Error, ErrorKind};
use gloo_rs::rendezvous::{PrefixStore, Store, file::FileStore};
use gloo_rs::transport::device::{Device, DeviceOptions};

use crate::calls::{Case, count_ranks};
use crate::clock;
use crate::host::Holdings;
use crate::support::Random;

const COLLECTIVES: [Collective; 7] = [
    Collective::Allreduce,
    Collective::Reduce,
    Collective::Broadcast,
    Collective::Allgather,
    Collective::Alltoall,
    Collective::ReduceScatter,
    Collective::Barrier,
];

/// How a rank ends, if it is not killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The rank does not end.
    Never,
    /// The rank ends by `_exit`, between two calls.
    Exit,
    /// The rank ends by `_exit` of another thread, in the middle of a call.
    ExitInside,
    /// The rank destroys its context between two calls, and exits then.
    Close,
}

impl Leave {
    const ALL: [Self; 4] = [Self::Never, Self::Exit, Self::ExitInside, Self::Close];
}

/// How the others go on without the rank that their error names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// They do not: it is not gone.
    No,
    /// They connect another context over the store.
    Connect,
    /// They shrink the context that has failed.
    Shrink,
}

impl Without {
    const ALL: [Self; 3] = [Self::No, Self::Connect, Self::Shrink];
}

/// What a rank is told: to join a context, and call until a call fails.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// The number of the context, the same on all ranks.
    pub generation: usize,
    pub rank: usize,
    pub size: usize,
    /// The seed of the random calls, the same on all ranks.
    pub seed: u64,
    /// Timeout of calls.
    pub timeout: Duration,
    /// How this rank ends, and after how many calls.
    pub leave: (Leave, usize),
    /// How the others go on.
    pub without: Without,
}

impl Order {
    pub fn write(&self) -> String {
        let Self { generation, rank, size, seed, timeout, leave: (leave, calls), without } = *self;
        let (timeout, leave) = (timeout.as_micros(), leave as usize);
        format!("{generation} {rank} {size} {seed} {timeout} {leave} {calls} {}\n", without as usize)
    }

    fn read(line: &str) -> Self {
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap() as usize;
        Self {
            generation: next(),
            rank: next(),
            size: next(),
            seed: next() as u64,
            timeout: Duration::from_micros(next() as u64),
            leave: (Leave::ALL[next()], next()),
            without: Without::ALL[next()],
        }
    }

    /// Prefix of the keys of the context, or of the one without the lost rank.
    pub fn prefix(&self, without: bool) -> String {
        format!("{}-{}", self.generation, self.size - usize::from(without))
    }
}

/// A random call, the same on all ranks that have drawn the same before.
fn random_case(random: &mut Random, size: usize) -> Case {
    let collective = random.pick(&COLLECTIVES);
    let elements = 1 << random.below(21);
    let blocks = matches!(collective, Collective::Allgather | Collective::Alltoall | Collective::ReduceScatter);
    let count = if blocks { (elements / size).max(1) } else { elements };
    let names: Vec<_> = collective.algorithms().iter().map(|a| a.name).filter(|name| *name != "local").collect();
    let algorithm = if random.chance(2) { None } else { Some(random.pick(&names)) };
    Case { algorithm, root: random.below(size), ..Case::new(collective, count) }
}

struct Rank {
    control: UnixStream,
    store: Arc<FileStore>,
    device: Arc<Device>,
}

/// Obeys the orders on `control` until it ends.
pub fn serve(control: UnixStream, directory: &Path) {
    // SAFETY: the call changes only how large blocks of malloc's are allocated: always mapped, so that freed ones are
    // given back.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10) };
    let orders = BufReader::new(control.try_clone().unwrap());
    let device = Device::create(&DeviceOptions::default()).unwrap();
    let mut rank = Rank { control, store: Arc::new(FileStore::new(directory).unwrap()), device };
    let mut holdings = Holdings::default();
    for line in orders.lines().map_while(Result::ok) {
        rank.obey(Order::read(&line));
        holdings.check();
        rank.tell(&[&"ready"]);
    }
}

impl Rank {
    fn tell(&mut self, fields: &[&dyn Display]) {
        let text: Vec<String> = fields.iter().map(|field| field.to_string().replace(['\t', '\n'], " ")).collect();
        self.control.write_all(format!("{}\n", text.join("\t")).as_bytes()).unwrap();
    }

    fn connect(&self, prefix: &str, rank: usize, size: usize, timeout: Duration) -> Arc<Context> {
        let options = ContextOptions { timeout: Duration::from_secs(30), ..Default::default() };
        let context = Context::new(self.device.clone(), rank, size, &options).unwrap();
        let store: Arc<dyn Store> = self.store.clone();
        context.connect(&PrefixStore::new(prefix, store)).unwrap();
        assert_shares_memory(&context);
        context.set_timeout(timeout);
        context
    }

    fn obey(&mut self, order: Order) {
        let Order { rank, size, timeout, without, .. } = order;
        let context = self.connect(&order.prefix(false), rank, size, timeout);
        self.tell(&[&"up"]);
        let (error, began, ended) = call_until_it_fails(context.clone(), &order);
        let broken = context.broken();
        let number = |rank: Option<usize>| rank.map_or(-1, |rank| rank as i64);
        let lost = error.details().rank;
        let broken_by = number(broken.and_then(|why| why.details().rank));
        let kind = format!("{:?}", error.kind());
        self.tell(&[&"failed", &began, &ended, &kind, &number(lost), &broken_by, &error.message()]);
        let Some(lost) = lost.filter(|lost| without != Without::No && *lost != rank) else { return };
        // The rank goes on as a program would, from nothing but the error.
        let own = rank - usize::from(rank > lost);
        let smaller = match without {
            Without::Shrink => {
                let smaller = context.shrink(Some(Duration::from_secs(30))).unwrap();
                assert_eq!((context.lost_ranks(), smaller.rank(), smaller.size()), (vec![lost], own, size - 1));
                assert_shares_memory(&smaller);
                smaller
            }
            _ => {
                drop(context);
                self.connect(&order.prefix(true), own, size - 1, timeout)
            }
        };
        let sum = count_ranks(&smaller).unwrap();
        self.tell(&[&"went on", &clock(), &sum]);
    }
}

/// These are ranks of one host, and without the variable nothing but shared memory is to be tested.
fn assert_shares_memory(context: &Context) {
    let (shares, rank) = (std::env::var("GLOO_RS_SHM").as_deref() != Ok("0"), context.rank());
    (0..context.size()).filter(|other| *other != rank).for_each(|other| {
        assert_eq!(context.shares_memory(other).unwrap(), shares, "rank {rank}, with rank {other}");
    });
}

/// The first error, and when its call began and ended.
fn call_until_it_fails(context: Arc<Context>, order: &Order) -> (Error, u64, u64) {
    let mut random = Random::new(order.seed);
    for call in 0.. {
        let case = random_case(&mut random, context.size());
        if order.leave.0 != Leave::Never && order.leave.1 == call {
            leave(order.leave.0, context.clone());
        }
        let began = clock();
        match case.run(&context) {
            // All ranks refuse an algorithm that needs shared memory if they have none.
            Err(error) if error.kind() != ErrorKind::Unsupported => return (error, began, clock()),
            _ => {}
        }
    }
    unreachable!("calls are endless")
}

fn leave(how: Leave, context: Arc<Context>) {
    // SAFETY: ends the process without running destructors.
    let exit = || unsafe { libc::_exit(0) };
    match how {
        Leave::Never => {}
        Leave::Exit => exit(),
        Leave::ExitInside => drop(std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1));
            exit();
        })),
        Leave::Close => {
            context.close();
            exit();
        }
    }
}
