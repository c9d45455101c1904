//! Queue pairs, and how their requests travel.
//!
//! A request departs when its turn has come, arrives, and is answered. The packets of a message are one here. Requests
//! that are not answered are sent again from the first one on, which begins a new attempt.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ibverbs_sys as ffi;

use super::super::{PortModel, Status};
use super::objects::{Pointer, WorkCompletion};
use super::{AsyncEvent, Completion, Element, Id, Place, State};
use crate::transport::ibverbs::port::LinkLayer;
use ffi::ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_RTR, IBV_QPS_RTS, Type as PairState};
use ffi::ibv_wc_status as status;
use ffi::ibv_wr_opcode as opcode;

/// Memory that a request names.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

/// A request in the send queue.
pub struct Request {
    pub sequence: u64,
    pub id: u64,
    pub opcode: opcode::Type,
    pub flags: u32,
    pub immediate: u32,
    pub remote: (u64, u32),
    pub pieces: Vec<Piece>,
    /// The bytes, if they were copied when it was posted.
    pub inline: Option<Vec<u8>>,
    /// The status with which the script lets it fail.
    pub planned: Option<Status>,
    /// The number of the request's first packet, once that has departed.
    pub psn: Option<u32>,
    pub outcome: Option<Status>,
}

impl Request {
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes as usize).sum()
    }

    fn is_read(&self) -> bool {
        self.opcode == opcode::IBV_WR_RDMA_READ
    }

    fn has(&self, flag: ffi::ibv_send_flags) -> bool {
        self.flags & flag.0 != 0
    }
}

/// A request in the receive queue.
pub struct Receive {
    pub sequence: u64,
    pub id: u64,
    pub pieces: Vec<Piece>,
}

/// Requests that were posted to a queue so far, and those whose places are free again.
#[derive(Clone, Copy, Default)]
pub struct Places {
    pub posted: u64,
    pub retired: u64,
}

impl Places {
    pub fn used(self) -> u64 {
        self.posted - self.retired
    }
}

/// Attributes of a connection, set by `ibv_modify_qp`.
#[derive(Clone, Copy, Default)]
pub struct Connection {
    pub port: u8,
    pub access: u32,
    pub mtu: u32,
    /// The peer's queue pair, and its address.
    pub number: u32,
    pub lid: u16,
    pub gid: Option<[u8; 16]>,
    pub own_gid: u8,
    /// The numbers of the next packet that is expected, and that is sent.
    pub expected: u32,
    pub next: u32,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rnr_timer: u8,
    /// RDMA reads at one time, as target and as initiator.
    pub reads: [u8; 2],
}

/// A queue pair.
pub struct Pair {
    pub place: Place,
    pub context: Id,
    pub domain: Id,
    pub number: u32,
    pub raw: Pointer<ffi::ibv_qp>,
    pub send_queue: Id,
    pub receive_queue: Id,
    pub capacity: ffi::ibv_qp_cap,
    pub signal_all: bool,
    pub state: PairState,
    pub connection: Connection,
    /// Nobody reaches it: its node has crashed, or its device is gone.
    pub unreachable: bool,
    pub sent: Places,
    pub received: Places,
    /// Requests without completion, and how many of them have departed in this attempt.
    pub requests: VecDeque<Request>,
    pub departed: usize,
    /// Whether the next one's departure is planned.
    pub departing: bool,
    pub receives: VecDeque<Receive>,
    /// Number of packets that were received in order since the connection was made.
    pub packets: u32,
    pub attempt: u32,
    /// Attempts without an answer, and refusals for lack of a receive request, since the last acknowledgement.
    pub retries: u8,
    pub rnr_retries: u8,
    /// The number of the timer that runs, if one does.
    pub timer: Option<u64>,
    /// When the last packet from here arrives, and the last answer to here.
    pub last_arrival: Instant,
    pub last_answer: Instant,
}

impl Pair {
    fn reads_in_flight(&self) -> usize {
        let departed = self.requests.iter().take(self.departed);
        departed.filter(|request| request.is_read() && request.outcome.is_none()).count()
    }

    /// Whether the request may not depart before an answer.
    fn must_wait(&self, request: &Request) -> bool {
        let reads = self.reads_in_flight();
        request.is_read() && reads >= usize::from(self.connection.reads[1])
            || request.has(ffi::ibv_send_flags::IBV_SEND_FENCE) && reads > 0
    }

    fn position(&self, sequence: u64) -> Option<usize> {
        self.requests.iter().take(self.departed).position(|request| request.sequence == sequence)
    }
}

/// A message on its way.
pub struct Packet {
    from: Id,
    /// The sender's device, port and connection when it departed, with the number of its queue pair.
    source: Place,
    port: u8,
    number: u32,
    connection: Connection,
    reads: usize,
    sequence: u64,
    attempt: u32,
    psn: u32,
    opcode: opcode::Type,
    solicited: bool,
    immediate: u32,
    remote: (u64, u32),
    bytes: usize,
    data: Vec<u8>,
    /// The data is read once more when it arrives, as for packets that are lost and sent again.
    read_again: bool,
}

/// How the receiver answers a message.
#[derive(Clone)]
pub enum Answer {
    /// The receiver has executed the message; with what was read.
    Done(Vec<u8>),
    /// The receiver has no receive request; try again after this time.
    NotReady(Duration),
    Refused(Status),
}

/// What happens at a time.
pub enum Event {
    Depart { pair: Id, attempt: u32 },
    Arrive(Box<Packet>),
    Answer { pair: Id, attempt: u32, sequence: u64, answer: Answer },
    Timer { pair: Id, number: u64 },
    Flush { pair: Id },
}

/// What the receiver has not executed: its answer, and the status of its own receive request, if it takes one.
struct Refusal {
    answer: Answer,
    own: Option<Status>,
    event: Option<ffi::ibv_event_type>,
}

impl Refusal {
    fn new(status: Status) -> Self {
        Self { answer: Answer::Refused(status), own: None, event: None }
    }
}

const PSN_MASK: u32 = 0xff_ffff;

/// Times that receivers without a receive request ask for, as verbs number them, in 10 µs.
const RNR_TIMES: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Reads memory for a work request.
///
/// # Safety
/// It is valid for reads of `bytes`.
unsafe fn read_memory(address: u64, bytes: usize, into: &mut Vec<u8>) {
    let memory = std::ptr::with_exposed_provenance::<u8>(address as usize);
    let before = into.len();
    into.reserve(bytes);
    // SAFETY: the caller guarantees the source; `into` has room, and the new bytes are initialised.
    unsafe {
        std::ptr::copy_nonoverlapping(memory, into.as_mut_ptr().add(before), bytes);
        into.set_len(before + bytes);
    }
}

/// The bytes of inline data.
///
/// # Safety
/// The pieces are valid for reads.
pub unsafe fn copy_inline(pieces: &[Piece]) -> Vec<u8> {
    let mut data = Vec::new();
    for piece in pieces {
        // SAFETY: the caller guarantees it.
        unsafe { read_memory(piece.address, piece.bytes as usize, &mut data) };
    }
    data
}

/// Writes memory for a work request.
///
/// # Safety
/// It is valid for writes of the bytes' length.
unsafe fn write_memory(address: u64, bytes: &[u8]) {
    let memory = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the caller guarantees the target.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
}

/// Whether a port is the one at which `connection` finds its peer, given the GID types of both.
fn is_addressed(connection: &Connection, kind: Option<u32>, port: &PortModel) -> bool {
    let has_gid = |gid: [u8; 16]| {
        port.gids.iter().flatten().any(|(own, own_kind)| *own == gid && kind.is_none_or(|kind| kind == *own_kind))
    };
    match port.link_layer {
        LinkLayer::InfiniBand => connection.lid == port.lid && connection.gid.is_none_or(has_gid),
        LinkLayer::Ethernet => connection.gid.is_some_and(has_gid),
    }
}

impl State {
    /// Handles everything that is due at `now`.
    pub fn run_until(&mut self, now: Instant) {
        while let Some(first) = self.events.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), event) = first.remove_entry();
            self.now = self.now.max(at);
            self.handle(event);
        }
        self.now = self.now.max(now);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Depart { pair, attempt } => self.depart(pair, attempt),
            Event::Arrive(packet) => self.arrive(*packet),
            Event::Answer { pair, attempt, sequence, answer } => self.answered(pair, attempt, sequence, answer),
            Event::Timer { pair, number } => self.timer(pair, number),
            Event::Flush { pair } => self.flush(pair),
        }
    }

    fn push(&mut self, at: Instant, node: usize, event: Event) {
        self.next_event += 1;
        self.events.insert((at, self.next_event), event);
        self.wake(node, at);
    }

    fn delay(&mut self) -> Duration {
        let range = self.delay.clone();
        self.random.duration(&range)
    }

    /// The time between requests of a queue pair.
    fn gap(&mut self) -> Duration {
        self.delay() / 16
    }

    /// Plans the departure of the next request, if there is one that may depart.
    pub fn advance(&mut self, id: Id) {
        let after = self.gap();
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        if pair.departing || pair.state != IBV_QPS_RTS || pair.unreachable {
            return;
        }
        let next = pair.requests.get(pair.departed).filter(|request| request.outcome.is_none());
        if next.is_some_and(|request| !pair.must_wait(request)) {
            pair.departing = true;
            let (node, attempt) = (pair.place.node, pair.attempt);
            self.push(self.now + after, node, Event::Depart { pair: id, attempt });
        }
    }

    fn depart(&mut self, id: Id, attempt: u32) {
        let Some(pair) = self.pairs.get_mut(&id).filter(|pair| pair.attempt == attempt) else { return };
        pair.departing = false;
        let Some(request) = pair.requests.get(pair.departed).filter(|request| request.outcome.is_none()) else {
            return;
        };
        if pair.must_wait(request) {
            return;
        }
        match self.check_request(id) {
            Ok(data) => self.send(id, data),
            Err(status) => {
                let pair = self.pairs.get_mut(&id).expect("the pair exists");
                pair.requests[pair.departed].outcome = Some(status);
                self.complete_front(id);
            }
        }
        self.advance(id);
    }

    /// Checks the next request, and reads its data.
    fn check_request(&self, id: Id) -> Result<Vec<u8>, Status> {
        let pair = &self.pairs[&id];
        let request = &pair.requests[pair.departed];
        if let Some(status) = request.planned {
            return Err(status);
        }
        let port = self.port(pair.place, pair.connection.port).expect("the port exists");
        if request.bytes() > port.max_message as usize {
            return Err(status::IBV_WC_LOC_LEN_ERR);
        }
        self.gather(pair, request).ok_or(status::IBV_WC_LOC_PROT_ERR)
    }

    /// The data of a request; `None` if its keys do not permit it. Empty for reads.
    fn gather(&self, pair: &Pair, request: &Request) -> Option<Vec<u8>> {
        if let Some(data) = &request.inline {
            return Some(data.clone());
        }
        if !self.is_local(pair.domain, &request.pieces, request.is_read()) {
            return None;
        }
        // SAFETY: all pieces are in registered memory, which is mapped while it is registered.
        Some(if request.is_read() { Vec::new() } else { unsafe { copy_inline(&request.pieces) } })
    }

    /// Whether the keys permit this side to access the pieces.
    fn is_local(&self, domain: Id, pieces: &[Piece], write: bool) -> bool {
        let needed = if write { ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 } else { 0 };
        let permits = |piece: &Piece| self.permits(domain, piece.key, piece.address, piece.bytes as usize, needed);
        pieces.iter().filter(|piece| piece.bytes > 0).all(permits)
    }

    fn permits(&self, domain: Id, key: Id, address: u64, bytes: usize, needed: u32) -> bool {
        self.regions.get(&key).is_some_and(|region| {
            let inside = address >= region.address
                && address.checked_add(bytes as u64).is_some_and(|end| end <= region.address + region.bytes);
            inside && !region.gone && region.domain == domain && region.access & needed == needed
        })
    }

    /// Like [`State::permits`], for a remote key.
    fn permits_remote(&self, domain: Id, remote: (u64, u32), bytes: usize, needed: ffi::ibv_access_flags) -> bool {
        bytes == 0 || remote.1 % 2 == 1 && self.permits(domain, remote.1 - 1, remote.0, bytes, needed.0)
    }

    /// Sends the next request.
    fn send(&mut self, id: Id, data: Vec<u8>) {
        let at = self.now + self.delay();
        let read_again = self.random.one_in(4);
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        let reads = pair.reads_in_flight();
        let connection = pair.connection;
        let request = &mut pair.requests[pair.departed];
        let psn = *request.psn.get_or_insert(pair.connection.next);
        if psn == pair.connection.next {
            pair.connection.next = (psn + packets(request.bytes(), connection.mtu)) & PSN_MASK;
        }
        let packet = Packet {
            from: id,
            source: pair.place,
            port: connection.port,
            number: pair.number,
            connection,
            reads: reads + usize::from(request.is_read()),
            sequence: request.sequence,
            attempt: pair.attempt,
            psn,
            opcode: request.opcode,
            solicited: request.has(ffi::ibv_send_flags::IBV_SEND_SOLICITED),
            immediate: request.immediate,
            remote: request.remote,
            bytes: request.bytes(),
            data,
            read_again,
        };
        pair.departed += 1;
        let at = at.max(pair.last_arrival);
        pair.last_arrival = at;
        let node = pair.place.node;
        if pair.timer.is_none() {
            self.start_timer(id);
        }
        if let Some((place, _)) = self.target(&packet) {
            self.wake(place.node, at);
        }
        self.push(at, node, Event::Arrive(Box::new(packet)));
    }

    /// Waits for an answer to the first request.
    fn start_timer(&mut self, id: Id) {
        self.next_event += 1;
        let number = self.next_event;
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        pair.timer = None;
        if pair.departed == 0 || pair.connection.timeout == 0 {
            return;
        }
        pair.timer = Some(number);
        let (node, after) = (pair.place.node, Duration::from_nanos(4096 << pair.connection.timeout));
        self.push(self.now + after, node, Event::Timer { pair: id, number });
    }

    fn timer(&mut self, id: Id, number: u64) {
        let Some(pair) = self.pairs.get_mut(&id).filter(|pair| pair.timer == Some(number)) else { return };
        pair.timer = None;
        pair.retries += 1;
        if pair.retries > pair.connection.retries {
            if let Some(first) = pair.requests.front_mut() {
                first.outcome = Some(status::IBV_WC_RETRY_EXC_ERR);
            }
            return self.complete_front(id);
        }
        self.retry(id, Duration::ZERO);
    }

    /// Sends all requests again.
    fn retry(&mut self, id: Id, after: Duration) {
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        pair.attempt += 1;
        pair.departed = 0;
        pair.departing = true;
        pair.timer = None;
        let (node, attempt) = (pair.place.node, pair.attempt);
        self.push(self.now + after, node, Event::Depart { pair: id, attempt });
    }

    /// The type of the GID by which a connection sends; `None` without one.
    fn gid_kind(&self, place: Place, connection: &Connection) -> Option<u32> {
        connection.gid?;
        self.own_gid(place, connection).map(|(_, kind)| kind)
    }

    fn own_gid(&self, place: Place, connection: &Connection) -> Option<([u8; 16], u32)> {
        self.port(place, connection.port)?.gids.get(usize::from(connection.own_gid)).copied().flatten()
    }

    /// Device and port at which a packet arrives.
    fn target(&self, packet: &Packet) -> Option<(Place, u8)> {
        let own = self.port(packet.source, packet.port).filter(|port| port.up)?;
        let kind = self.gid_kind(packet.source, &packet.connection);
        for (node, state) in &self.nodes {
            for (device, model) in state.devices.iter().enumerate().filter(|(_, device)| !device.removed) {
                let reaches = |port: &PortModel| {
                    port.up
                        && (port.subnet, port.link_layer) == (own.subnet, own.link_layer)
                        && is_addressed(&packet.connection, kind, port)
                };
                if let Some(index) = model.model.ports.iter().position(reaches) {
                    return Some((Place { node: *node, device }, index as u8 + 1));
                }
            }
        }
        None
    }

    /// The queue pair for which a packet is, if it is connected to the sender.
    fn receiver(&self, packet: &Packet) -> Option<Id> {
        let (place, port) = self.target(packet)?;
        let id = *self.numbers.get(&(place, packet.connection.number))?;
        let pair = &self.pairs[&id];
        let connection = &pair.connection;
        let ready = matches!(pair.state, IBV_QPS_RTR | IBV_QPS_RTS) && !pair.unreachable;
        let source = self.port(packet.source, packet.port)?;
        let (from, to) = (self.own_gid(packet.source, &packet.connection), self.own_gid(place, connection));
        // With RoCE, a packet's source is the GID that the sender has chosen, and its target the one that this side
        // has, of the same type.
        let gids = || match (from, to) {
            (Some(from), Some(to)) => {
                from.1 == to.1 && connection.gid == Some(from.0) && packet.connection.gid == Some(to.0)
            }
            _ => false,
        };
        let agrees = connection.port == port
            && connection.number == packet.number
            && is_addressed(connection, self.gid_kind(place, connection), source)
            && (source.link_layer == LinkLayer::InfiniBand || gids());
        (ready && agrees).then_some(id)
    }

    fn arrive(&mut self, mut packet: Packet) {
        let Some(id) = self.receiver(&packet) else { return };
        if packet.read_again {
            self.read_again(&mut packet);
        }
        let pair = &self.pairs[&id];
        let ahead = packet.psn.wrapping_sub(pair.connection.expected) & PSN_MASK;
        let answer = if ahead == 0 {
            match self.execute(id, &packet) {
                Ok(answer) => {
                    let pair = self.pairs.get_mut(&id).expect("the pair exists");
                    let count = packets(packet.bytes, packet.connection.mtu);
                    pair.connection.expected = (packet.psn + count) & PSN_MASK;
                    pair.packets = pair.packets.saturating_add(count);
                    answer
                }
                Err(refusal) => self.refuse(id, refusal),
            }
        } else if PSN_MASK + 1 - ahead <= pair.packets.min(PSN_MASK / 2) {
            // The message was executed before, and the answer was lost. Real devices answer all that are behind, even
            // if the ends have never agreed.
            match self.execute_again(id, &packet) {
                Some(answer) => answer,
                None => return,
            }
        } else {
            return;
        };
        self.answer(&packet, answer);
    }

    fn answer(&mut self, packet: &Packet, answer: Answer) {
        let at = self.now + self.delay();
        let Some(sender) = self.pairs.get_mut(&packet.from) else { return };
        let at = at.max(sender.last_answer);
        sender.last_answer = at;
        let (pair, attempt, sequence) = (packet.from, packet.attempt, packet.sequence);
        self.push(at, packet.source.node, Event::Answer { pair, attempt, sequence, answer });
    }

    fn read_again(&self, packet: &mut Packet) {
        let Some(pair) = self.pairs.get(&packet.from) else { return };
        let works = pair.state == IBV_QPS_RTS && pair.attempt == packet.attempt;
        let request = pair.requests.iter().find(|request| works && request.sequence == packet.sequence);
        if let Some(data) = request.and_then(|request| self.gather(pair, request)) {
            packet.data = data;
        }
    }

    /// Executes a message at its receiver.
    fn execute(&mut self, id: Id, packet: &Packet) -> Result<Answer, Refusal> {
        let pair = &self.pairs[&id];
        let (own, theirs) = (pair.connection.mtu, packet.connection.mtu);
        if own != theirs && packets(packet.bytes, own.min(theirs)) > 1 {
            return Err(Refusal::new(status::IBV_WC_REM_INV_REQ_ERR));
        }
        if pair.state == IBV_QPS_RTR {
            let (context, raw) = (pair.context, pair.raw);
            self.tell(context, AsyncEvent { kind: ffi::IBV_EVENT_COMM_EST, of: Element::Pair(raw) });
        }
        match packet.opcode {
            opcode::IBV_WR_RDMA_READ => self.execute_read(id, packet).map(Answer::Done),
            opcode::IBV_WR_RDMA_WRITE => self.execute_write(id, packet).map(|()| Answer::Done(Vec::new())),
            opcode::IBV_WR_RDMA_WRITE_WITH_IMM => {
                self.check_receive(id)?;
                self.execute_write(id, packet)?;
                self.finish_receive(id, packet, ffi::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
                Ok(Answer::Done(Vec::new()))
            }
            _ => {
                self.check_receive(id)?;
                self.execute_send(id, packet)?;
                self.finish_receive(id, packet, ffi::ibv_wc_opcode::IBV_WC_RECV);
                Ok(Answer::Done(Vec::new()))
            }
        }
    }

    fn execute_again(&mut self, id: Id, packet: &Packet) -> Option<Answer> {
        if packet.opcode == opcode::IBV_WR_RDMA_READ {
            return self.execute_read(id, packet).ok().map(Answer::Done);
        }
        Some(Answer::Done(Vec::new()))
    }

    /// Fails if the receiver does not permit the operation, or its memory the access.
    fn check_remote(&self, id: Id, packet: &Packet, access: ffi::ibv_access_flags) -> Result<(), Refusal> {
        let pair = &self.pairs[&id];
        if pair.connection.access & access.0 == 0 {
            return Err(Refusal::new(status::IBV_WC_REM_INV_REQ_ERR));
        }
        if !self.permits_remote(pair.domain, packet.remote, packet.bytes, access) {
            let event = Some(ffi::IBV_EVENT_QP_ACCESS_ERR);
            return Err(Refusal { event, ..Refusal::new(status::IBV_WC_REM_ACCESS_ERR) });
        }
        Ok(())
    }

    fn execute_read(&self, id: Id, packet: &Packet) -> Result<Vec<u8>, Refusal> {
        if packet.reads > usize::from(self.pairs[&id].connection.reads[0]) {
            return Err(Refusal::new(status::IBV_WC_REM_INV_REQ_ERR));
        }
        self.check_remote(id, packet, ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ)?;
        let mut data = Vec::new();
        // SAFETY: the memory is registered, and mapped while it is.
        unsafe { read_memory(packet.remote.0, packet.bytes, &mut data) };
        Ok(data)
    }

    fn execute_write(&self, id: Id, packet: &Packet) -> Result<(), Refusal> {
        self.check_remote(id, packet, ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE)?;
        // SAFETY: as above.
        unsafe { write_memory(packet.remote.0, &packet.data) };
        Ok(())
    }

    /// Fails if there is no receive request.
    fn check_receive(&mut self, id: Id) -> Result<(), Refusal> {
        let pair = &self.pairs[&id];
        if !pair.receives.is_empty() {
            return Ok(());
        }
        self.rnr += 1;
        let time = Duration::from_micros(10 * RNR_TIMES[usize::from(pair.connection.rnr_timer) % RNR_TIMES.len()]);
        Err(Refusal { answer: Answer::NotReady(time), own: None, event: None })
    }

    fn execute_send(&self, id: Id, packet: &Packet) -> Result<(), Refusal> {
        let pair = &self.pairs[&id];
        let receive = pair.receives.front().expect("a receive request");
        let room: usize = receive.pieces.iter().map(|piece| piece.bytes as usize).sum();
        if packet.data.len() > room {
            let own = Some(status::IBV_WC_LOC_LEN_ERR);
            return Err(Refusal { own, ..Refusal::new(status::IBV_WC_REM_INV_REQ_ERR) });
        }
        if !self.is_local(pair.domain, &receive.pieces, true) {
            let own = Some(status::IBV_WC_LOC_PROT_ERR);
            return Err(Refusal { own, ..Refusal::new(status::IBV_WC_REM_OP_ERR) });
        }
        scatter(&receive.pieces, &packet.data);
        Ok(())
    }

    /// Completes the first receive request.
    fn finish_receive(&mut self, id: Id, packet: &Packet, kind: ffi::ibv_wc_opcode::Type) {
        let with_immediate = matches!(packet.opcode, opcode::IBV_WR_SEND_WITH_IMM | opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
        let content = WorkCompletion {
            opcode: kind,
            byte_len: packet.bytes as u32,
            imm_data: if with_immediate { packet.immediate } else { 0 },
            wc_flags: if with_immediate { ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0 } else { 0 },
            ..Default::default()
        };
        self.complete_receive(id, content, packet.solicited);
    }

    fn complete_receive(&mut self, id: Id, mut content: WorkCompletion, solicited: bool) {
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        let Some(receive) = pair.receives.pop_front() else { return };
        content.wr_id = receive.id;
        content.qp_num = pair.number;
        let queue = pair.receive_queue;
        let completion = Completion { pair: id, receive: true, sequence: receive.sequence, solicited, content };
        self.complete(queue, completion);
    }

    /// The receiver refuses a message. Unless the sender may try again, its own queue pair fails, too.
    fn refuse(&mut self, id: Id, refusal: Refusal) -> Answer {
        if let Some(status) = refusal.own {
            let content = self.failed(status);
            self.complete_receive(id, content, true);
        }
        if let Some(kind) = refusal.event {
            let (context, raw) = (self.pairs[&id].context, self.pairs[&id].raw);
            self.tell(context, AsyncEvent { kind, of: Element::Pair(raw) });
        }
        if matches!(refusal.answer, Answer::Refused(_)) {
            self.fail_pair(id);
        }
        refusal.answer
    }

    /// A completion with an error, in which nothing else is defined.
    fn failed(&mut self, status: Status) -> WorkCompletion {
        let opcodes =
            [ffi::ibv_wc_opcode::IBV_WC_SEND, ffi::ibv_wc_opcode::IBV_WC_RECV, ffi::ibv_wc_opcode::IBV_WC_RDMA_READ];
        let opcode = opcodes[self.random.below(opcodes.len())];
        let byte_len = self.random.bits() as u32;
        WorkCompletion { status, opcode, byte_len, vendor_err: 0x81, ..Default::default() }
    }

    fn answered(&mut self, id: Id, attempt: u32, sequence: u64, answer: Answer) {
        let Some(pair) = self.pairs.get(&id).filter(|pair| pair.state == IBV_QPS_RTS && !pair.unreachable) else {
            return;
        };
        let Some(position) = pair.position(sequence) else { return };
        if !self.port(pair.place, pair.connection.port).is_some_and(|port| port.up) {
            return;
        }
        // An answer is one to all requests before, too; but the data of reads must have come.
        if pair.requests.iter().take(position).any(|request| request.is_read() && request.outcome.is_none()) {
            return;
        }
        let outcome = match answer {
            Answer::Done(data) => self.finish_read(id, position, &data),
            Answer::NotReady(time) => {
                if attempt == pair.attempt {
                    self.not_ready(id, position, time);
                }
                return;
            }
            Answer::Refused(status) => status,
        };
        self.acknowledge(id, position);
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        pair.requests[position].outcome = Some(outcome);
        self.complete_front(id);
        self.start_timer(id);
        self.advance(id);
    }

    /// All requests before `position` are done.
    fn acknowledge(&mut self, id: Id, position: usize) {
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        pair.retries = 0;
        for request in pair.requests.iter_mut().take(position) {
            request.outcome.get_or_insert(status::IBV_WC_SUCCESS);
        }
    }

    /// Writes what a read has read; the request's outcome.
    fn finish_read(&mut self, id: Id, position: usize, data: &[u8]) -> Status {
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        pair.rnr_retries = 0;
        let pair = &self.pairs[&id];
        let request = &pair.requests[position];
        if request.is_read() {
            if !self.is_local(pair.domain, &request.pieces, true) {
                return status::IBV_WC_LOC_PROT_ERR;
            }
            scatter(&request.pieces, data);
        }
        status::IBV_WC_SUCCESS
    }

    /// The receiver had no receive request for the request at `position`.
    fn not_ready(&mut self, id: Id, position: usize, time: Duration) {
        self.acknowledge(id, position);
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        pair.rnr_retries = pair.rnr_retries.saturating_add(1);
        if pair.connection.rnr_retries != 7 && pair.rnr_retries > pair.connection.rnr_retries {
            pair.requests[position].outcome = Some(status::IBV_WC_RNR_RETRY_EXC_ERR);
            return self.complete_front(id);
        }
        self.complete_front(id);
        self.retry(id, time);
    }

    /// Completes requests from the front on that have an outcome.
    fn complete_front(&mut self, id: Id) {
        loop {
            let pair = self.pairs.get_mut(&id).expect("the pair exists");
            let Some(outcome) = pair.requests.front().and_then(|request| request.outcome) else { return };
            let request = pair.requests.pop_front().expect("there is one");
            pair.departed = pair.departed.saturating_sub(1);
            let signaled = pair.signal_all || request.has(ffi::ibv_send_flags::IBV_SEND_SIGNALED);
            if outcome == status::IBV_WC_SUCCESS {
                if signaled {
                    self.complete_request(id, &request, WorkCompletion::default());
                }
                continue;
            }
            let content = self.failed(outcome);
            self.complete_request(id, &request, content);
            return self.fail_pair(id);
        }
    }

    fn complete_request(&mut self, id: Id, request: &Request, mut content: WorkCompletion) {
        let pair = &self.pairs[&id];
        let solicited = content.status != status::IBV_WC_SUCCESS;
        content.wr_id = request.id;
        content.qp_num = pair.number;
        if !solicited {
            content.opcode = match request.opcode {
                opcode::IBV_WR_RDMA_READ => ffi::ibv_wc_opcode::IBV_WC_RDMA_READ,
                opcode::IBV_WR_RDMA_WRITE | opcode::IBV_WR_RDMA_WRITE_WITH_IMM => ffi::ibv_wc_opcode::IBV_WC_RDMA_WRITE,
                _ => ffi::ibv_wc_opcode::IBV_WC_SEND,
            };
            content.byte_len = if request.is_read() { request.bytes() as u32 } else { 0 };
        }
        let queue = pair.send_queue;
        self.complete(queue, Completion { pair: id, receive: false, sequence: request.sequence, solicited, content });
    }

    /// Moves a queue pair to the error state; its requests are flushed a little later.
    pub fn fail_pair(&mut self, id: Id) {
        let after = self.gap();
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        if pair.state == ffi::ibv_qp_state::IBV_QPS_RESET {
            return;
        }
        pair.state = IBV_QPS_ERR;
        pair.attempt += 1;
        pair.departed = 0;
        pair.departing = false;
        pair.timer = None;
        let node = pair.place.node;
        self.push(self.now + after, node, Event::Flush { pair: id });
    }

    fn flush(&mut self, id: Id) {
        let Some(pair) = self.pairs.get_mut(&id).filter(|pair| pair.state == IBV_QPS_ERR) else { return };
        for request in std::mem::take(&mut pair.requests) {
            let content = self.failed(status::IBV_WC_WR_FLUSH_ERR);
            self.complete_request(id, &request, content);
        }
        while !self.pairs[&id].receives.is_empty() {
            let content = self.failed(status::IBV_WC_WR_FLUSH_ERR);
            self.complete_receive(id, content, true);
        }
    }

    /// A node has crashed: what each of its queue pairs has sent all arrives, or is lost from a random message on.
    pub fn lose_packets(&mut self, node: usize) {
        let pairs: Vec<Id> = self.pairs.iter().filter(|(_, pair)| pair.place.node == node).map(|(id, _)| *id).collect();
        for pair in pairs {
            if self.random.one_in(2) {
                let of = |event: &Event| matches!(event, Event::Arrive(packet) if packet.from == pair);
                let mut keep = self.random.below(self.events.values().filter(|event| of(event)).count() + 1);
                self.events.retain(|_, event| {
                    let counts = of(event);
                    let kept = !counts || keep > 0;
                    keep -= usize::from(counts && kept);
                    kept
                });
            }
        }
    }
}

/// Number of packets of a message, at least 1.
fn packets(bytes: usize, mtu: u32) -> u32 {
    bytes.div_ceil(128 << mtu).max(1) as u32
}

/// Writes data into the pieces of a request, which have been checked.
fn scatter(pieces: &[Piece], mut data: &[u8]) {
    for piece in pieces {
        let (part, rest) = data.split_at(data.len().min(piece.bytes as usize));
        // SAFETY: the piece is in registered memory, which is mapped while it is registered.
        unsafe { write_memory(piece.address, part) };
        data = rest;
    }
}
