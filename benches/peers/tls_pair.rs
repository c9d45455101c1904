//! A lower bound for an allreduce of two ranks over TLS on loopback: two processes with one TLS 1.3 connection between
//! them, by the same rustls and ring as the library's, each on a core of its own and both polling, exchange as many
//! bytes in each direction as the allreduce must, and sum up float32 where they lie decrypted. There are no messages,
//! no headers, no other connections.
//!
//!     tls_pair HOW READS SEND_BUFFER allreduce SIZES ITERATIONS SECONDS LOOP
//!
//! - HOW: `whole`, each sends all its elements and adds the other's to its own; or `halves`, each sends the half that
//!   the other sums up, and then the sums of its own half, as soon as it has them.
//! - READS: `direct`, rustls reads from the socket, at most a record at once; `buffered`, through a buffer of 128 KiB;
//!   or `unbuffered`, by rustls' connections without buffers of their own, with one of 128 KiB for reading.
//! - SEND_BUFFER: the sockets' SO_SNDBUF in bytes, 0 for the default.
//!
//! The other settings, the way of measuring and the lines of JSON are those of the programs beside this one, as
//! `harness.h` describes them.

use std::error::Error;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::client::UnbufferedClientConnection;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::UnbufferedServerConnection;
use rustls::server::WebPkiClientVerifier;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection, version};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The maximum number of bytes that are encrypted before they are sent: four records of the largest size.
const AHEAD: usize = 64 << 10;
/// Size of the buffer of `buffered` reads.
const BUFFER: usize = 128 << 10;
/// Turns without progress after which a side lets others have its core, as on a machine that has other work.
const PATIENCE: usize = 1000;
const FLOAT: usize = size_of::<f32>();
/// The constants of harness.h.
const MIN_CALLS: f64 = 5.0;
const LOOPS: usize = 10;
const NAME: &str = "rank.example";

/// What a side sends, and where it puts what it receives. The positions are counted from the beginning of an exchange.
trait Traffic {
    /// Bytes to send from `sent` on; empty if the next ones do not exist yet.
    fn next(&self, sent: usize) -> &[u8];
    /// Takes what follows the first `received` bytes.
    fn take(&mut self, received: usize, bytes: &[u8]);
}

/// Numbers that the sides exchange outside of measurements.
struct Numbers<'a> {
    own: &'a [u8],
    theirs: &'a mut [u8],
}

impl Traffic for Numbers<'_> {
    fn next(&self, sent: usize) -> &[u8] {
        &self.own[sent..]
    }

    fn take(&mut self, received: usize, bytes: &[u8]) {
        self.theirs[received..received + bytes.len()].copy_from_slice(bytes);
    }
}

fn as_bytes(numbers: &[f32]) -> &[u8] {
    // SAFETY: floats have no padding, and bytes no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Adds numbers that were received to `own`. What is encrypted at once is a whole number of them, and so is every
/// record.
fn add(into: &mut [f32], own: &[f32], theirs: &[u8]) {
    for ((sum, own), theirs) in into.iter_mut().zip(own).zip(theirs.chunks_exact(FLOAT)) {
        *sum = own + f32::from_ne_bytes([theirs[0], theirs[1], theirs[2], theirs[3]]);
    }
}

/// Each side sends all its elements.
struct Whole<'a> {
    input: &'a [f32],
    output: &'a mut [f32],
}

impl Traffic for Whole<'_> {
    fn next(&self, sent: usize) -> &[u8] {
        &as_bytes(self.input)[sent..]
    }

    fn take(&mut self, received: usize, bytes: &[u8]) {
        let (at, end) = (received / FLOAT, (received + bytes.len()) / FLOAT);
        add(&mut self.output[at..end], &self.input[at..end], bytes);
    }
}

/// Each side sums up one half: side 0 the first.
struct Halves<'a> {
    input: &'a [f32],
    output: &'a mut [f32],
    side: usize,
    /// Sums that exist.
    summed: usize,
}

impl Halves<'_> {
    fn half(&self) -> usize {
        self.input.len() / 2
    }

    /// Where a side's half begins.
    fn of(&self, side: usize) -> usize {
        side * self.half()
    }
}

impl Traffic for Halves<'_> {
    fn next(&self, sent: usize) -> &[u8] {
        let (half, sent) = (self.half(), sent / FLOAT);
        as_bytes(if sent < half {
            &self.input[self.of(1 - self.side)..][sent..half]
        } else {
            &self.output[self.of(self.side)..][sent - half..self.summed]
        })
    }

    fn take(&mut self, received: usize, bytes: &[u8]) {
        let (half, received, count) = (self.half(), received / FLOAT, bytes.len() / FLOAT);
        if received < half {
            let at = self.of(self.side) + received;
            add(&mut self.output[at..at + count], &self.input[at..at + count], bytes);
            self.summed = received + count;
        } else {
            let at = self.of(1 - self.side) + received - half;
            for (into, bytes) in self.output[at..at + count].iter_mut().zip(bytes.chunks_exact(FLOAT)) {
                *into = f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
    }
}

/// A connection that encrypts.
trait Channel {
    /// Whether encrypted bytes are not in the socket.
    fn wants_write(&self) -> bool;
    /// Encrypts bytes, and returns their number.
    fn encrypt(&mut self, bytes: &[u8]) -> Result<usize>;
    /// Sends what is encrypted. Returns whether anything was sent.
    fn send(&mut self) -> Result<bool>;
    /// Passes what has arrived to `take`, up to one read's size, and at most `wanted` bytes: the other side may be
    /// ahead. Returns their number.
    fn receive(&mut self, wanted: usize, take: &mut dyn FnMut(usize, &[u8])) -> Result<usize>;
    /// Sends and receives what the handshake needs. Returns whether it is over.
    fn handshake(&mut self) -> Result<bool>;
}

/// A connection with rustls' buffers.
struct Buffered {
    tls: Connection,
    socket: TcpStream,
    /// The buffer of `buffered` reads; empty for `direct` ones.
    buffer: Vec<u8>,
    /// What of it has arrived, and was not decrypted.
    arrived: Range<usize>,
}

/// `None` if that would block.
fn unless_it_blocks(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

impl Channel for Buffered {
    fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    fn encrypt(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(self.tls.writer().write(bytes)?)
    }

    fn send(&mut self) -> Result<bool> {
        Ok(unless_it_blocks(self.tls.write_tls(&mut self.socket))?.is_some())
    }

    fn receive(&mut self, wanted: usize, take: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let (mut may_read, mut received) = (true, 0);
        loop {
            let mut reader = self.tls.reader();
            while received < wanted {
                let chunk = match reader.fill_buf() {
                    Ok([]) => return Err("the other side has ended".into()),
                    Ok(chunk) => chunk,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                };
                let length = chunk.len().min(wanted - received);
                take(received, &chunk[..length]);
                reader.consume(length);
                received += length;
            }
            if received == wanted || !may_read && self.arrived.is_empty() {
                return Ok(received);
            }
            if self.buffer.is_empty() {
                may_read = false;
                if unless_it_blocks(self.tls.read_tls(&mut self.socket))?.is_none() {
                    return Ok(received);
                }
            } else {
                if self.arrived.is_empty() {
                    may_read = false;
                    let Some(arrived) = unless_it_blocks(self.socket.read(&mut self.buffer))? else {
                        return Ok(received);
                    };
                    self.arrived = 0..arrived;
                }
                self.arrived.start += self.tls.read_tls(&mut &self.buffer[self.arrived.clone()])?;
            }
            self.tls.process_new_packets()?;
        }
    }

    fn handshake(&mut self) -> Result<bool> {
        match self.tls.complete_io(&mut self.socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error.into()),
            _ => Ok(!self.tls.is_handshaking() && !self.tls.wants_write()),
        }
    }
}

/// One of rustls' connections without buffers.
enum Bare {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// A connection with buffers of its own.
struct Unbuffered {
    tls: Bare,
    socket: TcpStream,
    incoming: Vec<u8>,
    arrived: Range<usize>,
    outgoing: Vec<u8>,
    encrypted: Range<usize>,
}

/// What a step is to do beside what the session itself needs.
enum Step<'a> {
    Encrypt(&'a [u8]),
    Receive(&'a mut dyn FnMut(&[u8])),
    Nothing,
}

impl Unbuffered {
    fn new(tls: Bare, socket: TcpStream) -> Self {
        Self { tls, socket, incoming: vec![0; BUFFER], arrived: 0..0, outgoing: vec![0; AHEAD + 1024], encrypted: 0..0 }
    }

    /// Makes one step. What only encrypts need not see what has arrived, since no message of the session follows the
    /// handshake here.
    fn step(&mut self, order: Step<'_>) -> Result<bool> {
        fn handle<T>(
            status: UnbufferedStatus<'_, '_, T>,
            order: Step<'_>,
            outgoing: &mut [u8],
            encrypted: &mut Range<usize>,
        ) -> Result<(usize, bool)> {
            let room = &mut outgoing[encrypted.end..];
            Ok((
                status.discard,
                match (status.state?, order) {
                    (ConnectionState::ReadTraffic(mut traffic), Step::Receive(take)) => {
                        while let Some(record) = traffic.next_record() {
                            take(record?.payload);
                        }
                        true
                    }
                    (ConnectionState::EncodeTlsData(mut data), _) => {
                        encrypted.end += data.encode(room)?;
                        true
                    }
                    (ConnectionState::TransmitTlsData(data), _) => {
                        data.done();
                        true
                    }
                    (ConnectionState::WriteTraffic(mut traffic), Step::Encrypt(bytes)) => {
                        encrypted.end += traffic.encrypt(bytes, room)?;
                        true
                    }
                    _ => false,
                },
            ))
        }
        let hides = matches!(order, Step::Encrypt(_));
        let records = &mut self.incoming[self.arrived.start..if hides { self.arrived.start } else { self.arrived.end }];
        let (outgoing, encrypted) = (&mut self.outgoing, &mut self.encrypted);
        let (discard, moved) = match &mut self.tls {
            Bare::Client(tls) => handle(tls.process_tls_records(records), order, outgoing, encrypted)?,
            Bare::Server(tls) => handle(tls.process_tls_records(records), order, outgoing, encrypted)?,
        };
        self.arrived.start += discard;
        Ok(moved)
    }

    /// Reads what has arrived. Returns whether anything has.
    fn read(&mut self) -> Result<bool> {
        self.incoming.copy_within(self.arrived.clone(), 0);
        self.arrived = 0..self.arrived.len();
        match unless_it_blocks(self.socket.read(&mut self.incoming[self.arrived.end..]))? {
            Some(0) => Err("the other side has ended".into()),
            Some(count) => {
                self.arrived.end += count;
                Ok(true)
            }
            None => Ok(false),
        }
    }
}

impl Channel for Unbuffered {
    fn wants_write(&self) -> bool {
        !self.encrypted.is_empty()
    }

    fn encrypt(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.step(Step::Encrypt(bytes))? { Ok(bytes.len()) } else { Err("the session cannot encrypt".into()) }
    }

    fn send(&mut self) -> Result<bool> {
        let sent = unless_it_blocks(self.socket.write(&self.outgoing[self.encrypted.clone()]))?;
        self.encrypted.start += sent.unwrap_or(0);
        if self.encrypted.is_empty() {
            self.encrypted = 0..0;
        }
        Ok(sent.is_some())
    }

    fn receive(&mut self, wanted: usize, take: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let (mut may_read, mut received) = (true, 0);
        loop {
            // An exchange begins with a record of its own, so no record has more than is wanted.
            while received < wanted && !self.arrived.is_empty() {
                let mut next = |bytes: &[u8]| {
                    take(received, bytes);
                    received += bytes.len();
                };
                if !self.step(Step::Receive(&mut next))? {
                    break;
                }
            }
            if received == wanted || !may_read || !self.read()? {
                return Ok(received);
            }
            may_read = false;
        }
    }

    fn handshake(&mut self) -> Result<bool> {
        while self.step(Step::Nothing)? {}
        while self.wants_write() && self.send()? {}
        let is_handshaking = match &self.tls {
            Bare::Client(tls) => tls.is_handshaking(),
            Bare::Server(tls) => tls.is_handshaking(),
        };
        if is_handshaking {
            self.read()?;
        }
        Ok(!is_handshaking && !self.wants_write())
    }
}

/// One side of the connection.
struct Side {
    side: usize,
    halves: bool,
    channel: Box<dyn Channel>,
}

impl Side {
    /// Sends `bytes` bytes and receives as many.
    fn exchange(&mut self, bytes: usize, traffic: &mut impl Traffic) -> Result<()> {
        let (mut sent, mut received, mut idle) = (0, 0, 0);
        while sent < bytes || received < bytes || self.channel.wants_write() {
            let before = (sent, received);
            if sent < bytes && !self.channel.wants_write() {
                let next = traffic.next(sent);
                if !next.is_empty() {
                    sent += self.channel.encrypt(&next[..next.len().min(AHEAD)])?;
                }
            }
            let moved = self.channel.wants_write() && self.channel.send()?;
            if received < bytes {
                let before = received;
                received +=
                    self.channel.receive(bytes - received, &mut |at, chunk| traffic.take(before + at, chunk))?;
            }
            idle = if moved || before != (sent, received) { 0 } else { idle + 1 };
            if idle > PATIENCE {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<()> {
        self.exchange(1, &mut Numbers { own: &[1], theirs: &mut [0] })
    }

    /// Replaces each number by the larger of both sides'.
    fn largest(&mut self, numbers: &mut [f32]) -> Result<()> {
        let mut theirs = vec![0; size_of_val(numbers)];
        self.exchange(theirs.len(), &mut Numbers { own: as_bytes(numbers), theirs: &mut theirs })?;
        for (own, theirs) in numbers.iter_mut().zip(theirs.chunks_exact(FLOAT)) {
            *own = own.max(f32::from_ne_bytes([theirs[0], theirs[1], theirs[2], theirs[3]]));
        }
        Ok(())
    }

    fn allreduce(&mut self, input: &[f32], output: &mut [f32]) -> Result<()> {
        let (bytes, side) = (size_of_val(input), self.side);
        if self.halves && input.len().is_multiple_of(2) {
            self.exchange(bytes, &mut Halves { input, output, side, summed: 0 })
        } else {
            self.exchange(bytes, &mut Whole { input, output })
        }
    }

    /// Microseconds of a call, on average of so many in a row after a barrier.
    fn time(&mut self, input: &[f32], output: &mut [f32], calls: usize) -> Result<f32> {
        self.barrier()?;
        let start = Instant::now();
        for _ in 0..calls {
            self.allreduce(input, output)?;
        }
        Ok((start.elapsed().as_secs_f64() * 1e6 / calls as f64) as f32)
    }

    fn measure(&mut self, bytes: usize, request: &Request) -> Result<()> {
        let count = (bytes / FLOAT).max(1);
        let input: Vec<f32> = (0..count).map(|i| element(i, self.side)).collect();
        let mut output = vec![f32::NAN; count];
        let verify = |output: &[f32]| match (0..count).find(|&i| output[i] != element(i, 0) + element(i, 1)) {
            Some(i) => Err(format!("wrong result at element {i}: {}", output[i])),
            None => Ok(()),
        };
        self.time(&input, &mut output, 1)?;
        verify(&output)?;
        let mut fastest = [self.time(&input, &mut output, 1)?.min(self.time(&input, &mut output, 1)?)];
        self.largest(&mut fastest)?;
        let fit = (request.seconds * 1e6 / f64::from(fastest[0].max(0.01))).max(MIN_CALLS);
        let iterations = fit.min(request.iterations) as usize;
        for _ in 0..iterations / 5 {
            self.time(&input, &mut output, 1)?;
        }
        let mut times = Vec::with_capacity(iterations);
        for _ in 0..iterations {
            times.push(self.time(&input, &mut output, 1)?);
        }
        self.largest(&mut times)?;
        let mut loops = Vec::new();
        for _ in 0..if request.loops { LOOPS } else { 0 } {
            loops.push(self.time(&input, &mut output, iterations.div_ceil(LOOPS))?);
        }
        self.largest(&mut loops)?;
        verify(&output)?;
        if self.side == 0 {
            report(&request.algorithm, count * FLOAT, times, loops);
        }
        Ok(())
    }
}

/// Element `i` of a side's input: random bits, and never 0.
fn element(i: usize, side: usize) -> f32 {
    let mut bits = (i as u64 * 2 + side as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    1.0 + (bits >> 41) as f32 / (1 << 23) as f32
}

/// The smallest time that this percentage of the sorted times does not exceed.
fn percentile(sorted: &[f32], percent: usize) -> f32 {
    sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1]
}

fn report(algorithm: &str, bytes: usize, mut times: Vec<f32>, mut loops: Vec<f32>) {
    times.sort_by(f32::total_cmp);
    loops.sort_by(f32::total_cmp);
    let [min, p50, p99, max] = [0, 50, 99, 100].map(|percent| percentile(&times, percent));
    let loops = if loops.is_empty() { "null".to_owned() } else { format!("{:.4}", percentile(&loops, 50)) };
    println!(
        "{{\"collective\":\"allreduce\",\"algorithm\":\"{algorithm}\",\"ranks\":2,\"bytes\":{bytes},\"iterations\":{},\
         \"min_us\":{min:.3},\"p50_us\":{p50:.3},\"p99_us\":{p99:.3},\"max_us\":{max:.3},\"loop_us\":{loops}}}",
        times.len()
    );
}

/// What the command line says.
struct Request {
    algorithm: String,
    halves: bool,
    reads: String,
    send_buffer: usize,
    sizes: Vec<usize>,
    iterations: f64,
    seconds: f64,
    loops: bool,
}

impl Request {
    fn parse(arguments: &[String]) -> Result<Self> {
        // `cargo bench` adds the last one.
        let [how, reads, send_buffer, collective, sizes, iterations, seconds, loops, ..] = arguments else {
            return Err("usage: tls_pair HOW READS SEND_BUFFER allreduce SIZES ITERATIONS SECONDS LOOP".into());
        };
        if collective != "allreduce"
            || !["whole", "halves"].contains(&&**how)
            || !["direct", "buffered", "unbuffered"].contains(&&**reads)
        {
            return Err("wrong arguments".into());
        }
        Ok(Self {
            algorithm: how.clone(),
            halves: how == "halves",
            reads: reads.clone(),
            send_buffer: send_buffer.parse()?,
            sizes: sizes.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?,
            iterations: iterations.parse()?,
            seconds: seconds.parse()?,
            loops: loops == "1",
        })
    }
}

/// The configurations of both sides, each with a certificate.
type Configs = (Arc<ClientConfig>, Arc<ServerConfig>);

fn configs() -> Result<Configs> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate()?;
    let mut roots = RootCertStore::empty();
    roots.add(authority.self_signed(&authority_key)?.der().clone())?;
    let key = KeyPair::generate()?;
    let certificate =
        CertificateParams::new(vec![NAME.into()])?.signed_by(&key, &Issuer::new(authority, authority_key))?;
    let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let (provider, roots): (Arc<CryptoProvider>, _) = (Arc::new(ring::default_provider()), Arc::new(roots));
    let versions = &[&version::TLS13];
    let client = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
    let client = client.with_root_certificates(roots.clone()).with_client_auth_cert(chain.clone(), key.clone_key())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?;
    let server = ServerConfig::builder_with_provider(provider).with_protocol_versions(versions)?;
    let mut server = server.with_client_cert_verifier(verifier).with_single_cert(chain, key)?;
    server.send_tls13_tickets = 0;
    Ok((Arc::new(client), Arc::new(server)))
}

/// Binds this process to one of its cores, each side to another.
fn bind_to_core(side: usize) -> Result<()> {
    // SAFETY: the set is valid, and of the size that is passed.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed) != 0 {
            return Err(io::Error::last_os_error().into());
        }
        let cores = (0..libc::CPU_SETSIZE as usize).filter(|&core| libc::CPU_ISSET(core, &allowed));
        let core = cores.into_iter().nth(side).ok_or("two cores are needed")?;
        let mut own: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut own);
        if libc::sched_setaffinity(0, size_of_val(&own), &own) != 0 {
            return Err(io::Error::last_os_error().into());
        }
    }
    Ok(())
}

fn set_send_buffer(socket: &TcpStream, bytes: usize) -> Result<()> {
    let bytes = libc::c_int::try_from(bytes)?;
    // SAFETY: the option is an int.
    let result = unsafe {
        let value = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, size_of_val(&bytes) as u32)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
}

fn run(side: usize, socket: TcpStream, (client, server): Configs, request: &Request) -> Result<()> {
    bind_to_core(side)?;
    socket.set_nodelay(true)?;
    if request.send_buffer > 0 {
        set_send_buffer(&socket, request.send_buffer)?;
    }
    socket.set_nonblocking(true)?;
    let channel: Box<dyn Channel> = if request.reads == "unbuffered" {
        Box::new(Unbuffered::new(
            match side {
                0 => Bare::Server(UnbufferedServerConnection::new(server)?),
                _ => Bare::Client(UnbufferedClientConnection::new(client, NAME.try_into()?)?),
            },
            socket,
        ))
    } else {
        let mut tls: Connection = match side {
            0 => ServerConnection::new(server)?.into(),
            _ => ClientConnection::new(client, NAME.try_into()?)?.into(),
        };
        tls.set_buffer_limit(None);
        let buffer = if request.reads == "buffered" { vec![0; BUFFER] } else { Vec::new() };
        Box::new(Buffered { tls, socket, buffer, arrived: 0..0 })
    };
    let mut own = Side { side, halves: request.halves, channel };
    let deadline = Instant::now() + Duration::from_secs(10);
    while !own.channel.handshake()? {
        if Instant::now() > deadline {
            return Err("the handshake takes too long".into());
        }
    }
    request.sizes.iter().try_for_each(|&bytes| own.measure(bytes, request))
}

fn main() -> Result<()> {
    let request = Request::parse(&std::env::args().skip(1).collect::<Vec<_>>())?;
    let configs = configs()?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            let socket = TcpStream::connect(listener.local_addr()?)?;
            run(1, socket, configs, &request)
        }
        child => {
            let (socket, _) = listener.accept()?;
            let result = run(0, socket, configs, &request);
            let mut status = 0;
            // SAFETY: the status is valid.
            unsafe { libc::waitpid(child, &mut status, 0) };
            result.and_then(|()| if status == 0 { Ok(()) } else { Err("the other process has failed".into()) })
        }
    }
}
