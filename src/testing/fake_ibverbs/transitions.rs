//! Creation of queue pairs, changes of their state, and posting.

use std::collections::VecDeque;
use std::ffi::c_int;

use ibverbs_sys as ffi;

use super::state::objects::Pointer;
use super::state::packets::{Connection, Pair, Piece, Places, Receive, Request};
use super::state::{Id, State};
use super::{Counts, PortModel};
use crate::testing::loopback::NodeStatus;
use crate::transport::ibverbs::port::LinkLayer;
use ffi::ibv_qp_attr_mask as mask;
use ffi::ibv_qp_state::{IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, Type as PairState};
use ffi::ibv_wr_opcode as opcode;

/// A change of state, the attributes that it needs, and others that it permits.
struct Transition {
    from: PairState,
    to: PairState,
    needs: u32,
    permits: u32,
}

/// The changes that reliable connections permit, apart from those to RESET and ERR.
const TRANSITIONS: [Transition; 5] = [
    Transition {
        from: IBV_QPS_RESET,
        to: IBV_QPS_INIT,
        needs: mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_PORT.0 | mask::IBV_QP_ACCESS_FLAGS.0,
        permits: 0,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_INIT,
        needs: 0,
        permits: mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_PORT.0 | mask::IBV_QP_ACCESS_FLAGS.0,
    },
    Transition {
        from: IBV_QPS_INIT,
        to: IBV_QPS_RTR,
        needs: mask::IBV_QP_AV.0
            | mask::IBV_QP_PATH_MTU.0
            | mask::IBV_QP_DEST_QPN.0
            | mask::IBV_QP_RQ_PSN.0
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
            | mask::IBV_QP_MIN_RNR_TIMER.0,
        permits: mask::IBV_QP_PKEY_INDEX.0 | mask::IBV_QP_ACCESS_FLAGS.0,
    },
    Transition {
        from: IBV_QPS_RTR,
        to: IBV_QPS_RTS,
        needs: mask::IBV_QP_TIMEOUT.0
            | mask::IBV_QP_RETRY_CNT.0
            | mask::IBV_QP_RNR_RETRY.0
            | mask::IBV_QP_SQ_PSN.0
            | mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
        permits: mask::IBV_QP_CUR_STATE.0 | mask::IBV_QP_ACCESS_FLAGS.0 | mask::IBV_QP_MIN_RNR_TIMER.0,
    },
    Transition {
        from: IBV_QPS_RTS,
        to: IBV_QPS_RTS,
        needs: 0,
        permits: mask::IBV_QP_CUR_STATE.0 | mask::IBV_QP_ACCESS_FLAGS.0 | mask::IBV_QP_MIN_RNR_TIMER.0,
    },
];

/// Fails with `EINVAL` unless `condition`.
fn need(condition: bool) -> Result<(), c_int> {
    if condition { Ok(()) } else { Err(libc::EINVAL) }
}

/// What a new queue pair needs.
pub struct Parts {
    pub domain: Id,
    pub send_queue: Id,
    pub receive_queue: Id,
    pub capacity: ffi::ibv_qp_cap,
    pub signal_all: bool,
}

impl State {
    /// Creates a queue pair; returns its number as an object.
    pub fn create_pair(&mut self, parts: Parts) -> Result<Id, c_int> {
        let context = self.domains[&parts.domain];
        let place = self.check(context)?;
        let model = &self.device(place).model;
        let capacity = parts.capacity;
        let max = model.max_requests;
        need(capacity.max_send_wr.max(capacity.max_recv_wr) <= max)?;
        need(capacity.max_send_sge.max(capacity.max_recv_sge) <= model.max_pieces)?;
        need(capacity.max_inline_data <= model.max_inline)?;
        need([parts.send_queue, parts.receive_queue].iter().all(|queue| self.queues[queue].context == context))?;
        if self.pairs.values().filter(|pair| pair.place == place).count() >= model.max_pairs {
            return Err(libc::ENOMEM);
        }
        let (id, number) = (self.new_id(), self.take_number(place));
        let pair = Pair {
            place,
            context,
            domain: parts.domain,
            number,
            raw: Pointer(std::ptr::null_mut()),
            send_queue: parts.send_queue,
            receive_queue: parts.receive_queue,
            capacity,
            signal_all: parts.signal_all,
            state: IBV_QPS_RESET,
            connection: Connection::default(),
            unreachable: false,
            sent: Places::default(),
            received: Places::default(),
            requests: VecDeque::new(),
            departed: 0,
            departing: false,
            receives: VecDeque::new(),
            packets: 0,
            attempt: 0,
            retries: 0,
            rnr_retries: 0,
            timer: None,
            last_arrival: self.now,
            last_answer: self.now,
        };
        self.pairs.insert(id, pair);
        self.numbers.insert((place, number), id);
        Ok(id)
    }

    /// Destroys a queue pair. What it has sent may still arrive. Its completions are gone, or not.
    pub fn destroy_pair(&mut self, id: Id) -> Result<(), c_int> {
        let pair = self.pairs.remove(&id).expect("the pair exists");
        self.numbers.remove(&(pair.place, pair.number));
        if self.random.one_in(2) {
            self.forget_completions(id, [pair.send_queue, pair.receive_queue]);
        }
        Ok(())
    }

    fn forget_completions(&mut self, id: Id, queues: [Id; 2]) {
        for queue in queues {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.entries.retain(|entry| entry.pair != id);
            }
        }
    }

    /// Changes state and attributes of a queue pair.
    pub fn modify(&mut self, id: Id, attributes: &ffi::ibv_qp_attr, given: u32) -> Result<PairState, c_int> {
        let (context, from) = (self.pairs[&id].context, self.pairs[&id].state);
        self.check(context)?;
        let has = |attribute: mask| given & attribute.0 != 0;
        let to = if has(mask::IBV_QP_STATE) { attributes.qp_state } else { from };
        need(!has(mask::IBV_QP_CUR_STATE) || attributes.cur_qp_state == from)?;
        let others = given & !mask::IBV_QP_STATE.0;
        match to {
            IBV_QPS_RESET => {
                need(others == 0)?;
                self.reset(id);
            }
            IBV_QPS_ERR => {
                need(others == 0 && from != IBV_QPS_RESET)?;
                self.fail_pair(id);
            }
            _ => {
                let transition = TRANSITIONS.iter().find(|transition| (transition.from, transition.to) == (from, to));
                let Some(Transition { needs, permits, .. }) = transition else { return Err(libc::EINVAL) };
                need(others & needs == *needs && others & !(needs | permits) == 0)?;
                let connection = self.connection(id, attributes, given)?;
                let pair = self.pairs.get_mut(&id).expect("the pair exists");
                pair.connection = connection;
                pair.state = to;
            }
        }
        Ok(to)
    }

    fn reset(&mut self, id: Id) {
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        pair.state = IBV_QPS_RESET;
        pair.requests.clear();
        pair.receives.clear();
        pair.sent.retired = pair.sent.posted;
        pair.received.retired = pair.received.posted;
        pair.departed = 0;
        pair.departing = false;
        pair.attempt += 1;
        pair.timer = None;
        pair.packets = 0;
        (pair.retries, pair.rnr_retries) = (0, 0);
        let queues = [pair.send_queue, pair.receive_queue];
        self.forget_completions(id, queues);
    }

    /// The connection with the given attributes, which are checked.
    fn connection(&self, id: Id, attributes: &ffi::ibv_qp_attr, given: u32) -> Result<Connection, c_int> {
        let pair = &self.pairs[&id];
        let limits = self.device(pair.place).model.max_reads;
        let mut connection = pair.connection;
        let has = |attribute: mask| given & attribute.0 != 0;
        need(!has(mask::IBV_QP_PKEY_INDEX) || attributes.pkey_index == 0)?;
        if has(mask::IBV_QP_PORT) {
            need(self.port(pair.place, attributes.port_num).is_some())?;
            connection.port = attributes.port_num;
        }
        let port = self.port(pair.place, connection.port).ok_or(libc::EINVAL)?;
        if has(mask::IBV_QP_ACCESS_FLAGS) {
            connection.access = attributes.qp_access_flags;
        }
        if has(mask::IBV_QP_PATH_MTU) {
            need((ffi::IBV_MTU_256..=port.mtu).contains(&attributes.path_mtu))?;
            connection.mtu = attributes.path_mtu;
        }
        if has(mask::IBV_QP_AV) {
            set_address(&mut connection, port, &attributes.ah_attr)?;
        }
        let number = |attribute: mask, value: u32, max: u32, into: &mut u32| {
            if has(attribute) {
                need(value <= max)?;
                *into = value;
            }
            Ok::<(), c_int>(())
        };
        number(mask::IBV_QP_DEST_QPN, attributes.dest_qp_num, 0xff_ffff, &mut connection.number)?;
        number(mask::IBV_QP_RQ_PSN, attributes.rq_psn, 0xff_ffff, &mut connection.expected)?;
        number(mask::IBV_QP_SQ_PSN, attributes.sq_psn, 0xff_ffff, &mut connection.next)?;
        let small = |attribute: mask, value: u8, max: u8, into: &mut u8| {
            if has(attribute) {
                need(value <= max)?;
                *into = value;
            }
            Ok::<(), c_int>(())
        };
        small(mask::IBV_QP_TIMEOUT, attributes.timeout, 31, &mut connection.timeout)?;
        small(mask::IBV_QP_RETRY_CNT, attributes.retry_cnt, 7, &mut connection.retries)?;
        small(mask::IBV_QP_RNR_RETRY, attributes.rnr_retry, 7, &mut connection.rnr_retries)?;
        small(mask::IBV_QP_MIN_RNR_TIMER, attributes.min_rnr_timer, 31, &mut connection.rnr_timer)?;
        small(mask::IBV_QP_MAX_DEST_RD_ATOMIC, attributes.max_dest_rd_atomic, limits[0], &mut connection.reads[0])?;
        small(mask::IBV_QP_MAX_QP_RD_ATOMIC, attributes.max_rd_atomic, limits[1], &mut connection.reads[1])?;
        Ok(connection)
    }

    /// What a node may post, given the state of its queue pair.
    fn may_post(&self, id: Id, states: &[PairState]) -> Result<(), c_int> {
        let pair = &self.pairs[&id];
        if self.device(pair.place).removed || self.nodes[&pair.place.node].status == NodeStatus::Silent {
            return Err(libc::EIO);
        }
        need(states.contains(&pair.state))
    }

    /// Posts a send request.
    pub fn post(&mut self, id: Id, mut request: Request) -> Result<(), c_int> {
        self.may_post(id, &[IBV_QPS_RTS, IBV_QPS_ERR])?;
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        check_pieces(&request.pieces, pair.capacity.max_send_sge)?;
        let read = request.opcode == opcode::IBV_WR_RDMA_READ;
        need(request.opcode <= opcode::IBV_WR_RDMA_READ)?;
        need(!read || request.inline.is_none() && pair.connection.reads[1] > 0)?;
        if pair.sent.used() >= u64::from(pair.capacity.max_send_wr) {
            return Err(libc::ENOMEM);
        }
        request.sequence = pair.sent.posted;
        pair.sent.posted += 1;
        let (place, failed) = (pair.place, pair.state == IBV_QPS_ERR);
        let node = self.node(place.node);
        request.planned = node.planned.remove(&node.posted);
        node.posted += 1;
        let failure = node.planned_failure.take_if(|(after, _)| *after <= node.posted);
        count(&mut node.counts, &request);
        self.failing = failure.map(|(_, status)| (place.node, status)).or(self.failing);
        self.pairs.get_mut(&id).expect("the pair exists").requests.push_back(request);
        if failed {
            self.fail_pair(id)
        } else {
            self.advance(id)
        }
        Ok(())
    }

    /// Posts a receive request.
    pub fn post_receive(&mut self, id: Id, request: u64, pieces: Vec<Piece>) -> Result<(), c_int> {
        self.may_post(id, &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR])?;
        let pair = self.pairs.get_mut(&id).expect("the pair exists");
        check_pieces(&pieces, pair.capacity.max_recv_sge)?;
        if pair.received.used() >= u64::from(pair.capacity.max_recv_wr) {
            return Err(libc::ENOMEM);
        }
        pair.receives.push_back(Receive { sequence: pair.received.posted, id: request, pieces });
        pair.received.posted += 1;
        let (place, failed) = (pair.place, pair.state == IBV_QPS_ERR);
        self.node(place.node).counts.receives += 1;
        if failed {
            self.fail_pair(id);
        }
        Ok(())
    }
}

fn check_pieces(pieces: &[Piece], max: u32) -> Result<(), c_int> {
    need(pieces.len() <= max as usize)
}

fn count(counts: &mut Counts, request: &Request) {
    counts.bytes += request.bytes() as u64;
    *match request.opcode {
        opcode::IBV_WR_SEND => &mut counts.sends[0],
        opcode::IBV_WR_SEND_WITH_IMM => &mut counts.sends[1],
        opcode::IBV_WR_RDMA_WRITE => &mut counts.writes[0],
        opcode::IBV_WR_RDMA_WRITE_WITH_IMM => &mut counts.writes[1],
        _ => &mut counts.reads,
    } += 1;
}

/// Sets the peer's address.
fn set_address(connection: &mut Connection, port: &PortModel, address: &ffi::ibv_ah_attr) -> Result<(), c_int> {
    need(address.port_num == connection.port)?;
    let global = address.is_global != 0;
    need(global || port.link_layer == LinkLayer::InfiniBand)?;
    if global {
        need(port.gids.get(usize::from(address.grh.sgid_index)).is_some_and(Option::is_some))?;
        // A packet with this limit leaves no subnet.
        need(address.grh.hop_limit > 0)?;
    }
    // SAFETY: every bit pattern is 16 bytes.
    connection.gid = global.then_some(unsafe { address.grh.dgid.raw });
    connection.own_gid = address.grh.sgid_index;
    connection.lid = address.dlid;
    Ok(())
}
