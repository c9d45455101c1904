//! Tests of the fake itself, through the handles.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::state::objects::WorkCompletion;
use super::*;
use crate::testing::loopback::{LinkModel, Node};
use crate::transport::ibverbs::handles::{Capacity, CompletionQueue, MemoryRegion, QueuePair};
use ffi::ibv_qp_attr_mask as mask;
use ffi::ibv_qp_state as state;
use ffi::ibv_wc_status as status;
use ffi::ibv_wr_opcode as opcode;

const SIGNALED: u32 = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINE: u32 = ffi::ibv_send_flags::IBV_SEND_INLINE.0;
const FENCE: u32 = ffi::ibv_send_flags::IBV_SEND_FENCE.0;
const CAPACITY: Capacity = Capacity { sends: 16, receives: 16, inline: 64 };

fn network() -> Network {
    let delay = Duration::from_micros(1)..Duration::from_micros(20);
    Network::new(3, LinkModel { delay, capacity: 1000, piece: 1000, reads_above: None, places_above: None })
}

/// Memory that is registered; the registration ends first.
struct Buffer {
    region: MemoryRegion,
    bytes: Box<[u8]>,
}

impl Buffer {
    fn new(rail: &Rail, bytes: Vec<u8>) -> Self {
        let mut bytes = bytes.into_boxed_slice();
        // SAFETY: the region is dropped with the memory, before anything else uses it.
        let region = unsafe { MemoryRegion::new(&rail.domain, bytes.as_mut_ptr(), bytes.len()) }.unwrap();
        Self { bytes, region }
    }

    fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    fn piece(&self, bytes: usize) -> ffi::ibv_sge {
        ffi::ibv_sge { addr: self.address(), length: bytes as u32, lkey: self.region.local_key }
    }

    /// The bytes, which the fabric may have written.
    fn read(&self) -> Vec<u8> {
        // SAFETY: the memory exists.
        (0..self.bytes.len()).map(|index| unsafe { self.bytes.as_ptr().add(index).read_volatile() }).collect()
    }
}

/// One end of a connection.
struct End {
    pair: QueuePair,
    queue: Arc<CompletionQueue>,
    rail: Arc<Rail>,
}

impl End {
    fn new(rail: &Arc<Rail>) -> Self {
        let queue = CompletionQueue::new(rail.domain.context().clone(), 64).unwrap();
        Self { pair: QueuePair::new(&rail.domain, &queue, CAPACITY).unwrap(), queue, rail: rail.clone() }
    }

    fn initialise(&self) {
        let attributes = ffi::ibv_qp_attr {
            qp_state: state::IBV_QPS_INIT,
            port_num: self.rail.port,
            qp_access_flags: (ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ)
                .0,
            ..Default::default()
        };
        let given = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.pair.modify(attributes, given).unwrap();
    }

    fn listen(&self, peer: &End, psn: u32) -> io::Result<()> {
        let mut attributes = ffi::ibv_qp_attr {
            qp_state: state::IBV_QPS_RTR,
            path_mtu: self.rail.mtu,
            dest_qp_num: peer.pair.number,
            rq_psn: psn,
            max_dest_rd_atomic: 2,
            min_rnr_timer: 12,
            ..Default::default()
        };
        attributes.ah_attr.port_num = self.rail.port;
        match self.rail.link_layer {
            LinkLayer::InfiniBand => attributes.ah_attr.dlid = peer.rail.lid,
            LinkLayer::Ethernet => {
                attributes.ah_attr.is_global = 1;
                attributes.ah_attr.grh.dgid.raw = peer.rail.gid;
                attributes.ah_attr.grh.sgid_index = self.rail.gid_index;
                attributes.ah_attr.grh.hop_limit = 64;
            }
        }
        let given = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.pair.modify(attributes, given)
    }

    fn start(&self, psn: u32, rnr_retry: u8) {
        let attributes = ffi::ibv_qp_attr {
            qp_state: state::IBV_QPS_RTS,
            sq_psn: psn,
            timeout: 10,
            retry_cnt: 3,
            rnr_retry,
            max_rd_atomic: 2,
            ..Default::default()
        };
        let given = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.pair.modify(attributes, given).unwrap();
    }

    fn fail(&self) {
        let attributes = ffi::ibv_qp_attr { qp_state: state::IBV_QPS_ERR, ..Default::default() };
        self.pair.modify(attributes, mask::IBV_QP_STATE).unwrap();
    }

    fn receive(&self, id: u64, buffer: &Buffer, bytes: usize) -> io::Result<()> {
        let mut piece = buffer.piece(bytes);
        let mut request = ffi::ibv_recv_wr { wr_id: id, next: std::ptr::null_mut(), sg_list: &mut piece, num_sge: 1 };
        // SAFETY: the tests keep their buffers.
        unsafe { self.pair.post_receive(&mut request) }
    }

    fn post(&self, id: u64, kind: opcode::Type, flags: u32, mut piece: ffi::ibv_sge, to: (u64, u32)) -> io::Result<()> {
        let mut request = ffi::ibv_send_wr {
            wr_id: id,
            sg_list: &mut piece,
            num_sge: 1,
            opcode: kind,
            send_flags: flags,
            ..Default::default()
        };
        request.__bindgen_anon_1.imm_data = 0x1234;
        request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: to.0, rkey: to.1 };
        // SAFETY: the tests keep their buffers.
        unsafe { self.pair.post_send(&mut request) }
    }

    fn send(&self, id: u64, buffer: &Buffer, bytes: usize) -> io::Result<()> {
        self.post(id, opcode::IBV_WR_SEND, SIGNALED, buffer.piece(bytes), (0, 0))
    }

    fn poll(&self) -> Vec<ffi::ibv_wc> {
        // SAFETY: a completion consists of integers.
        let mut into: [ffi::ibv_wc; 64] = unsafe { std::mem::zeroed() };
        let count = self.queue.poll(&mut into).unwrap();
        into[..count].to_vec()
    }

    /// The identifiers and statuses of all completions.
    fn statuses(&self) -> Vec<(u64, Status)> {
        self.poll().iter().map(|completion| (completion.wr_id(), status_of(completion))).collect()
    }
}

fn status_of(completion: &ffi::ibv_wc) -> Status {
    completion.error().map_or(status::IBV_WC_SUCCESS, |(status, _)| status)
}

/// Two connected nodes on a network.
struct Two {
    network: Network,
    fabric: Fabric,
    ends: [End; 2],
    buffers: [Buffer; 2],
}

impl Two {
    fn new() -> Self {
        let (network, fabric) = fabric(DeviceModel::infiniband);
        Self::on(network, fabric, 7)
    }

    fn on(network: Network, fabric: Fabric, rnr_retry: u8) -> Self {
        let rails = [0, 1].map(|node| fabric.rails(node).remove(0));
        let ends = rails.each_ref().map(End::new);
        ends.iter().for_each(End::initialise);
        ends[0].listen(&ends[1], 20).unwrap();
        ends[1].listen(&ends[0], 0xff_fffe).unwrap();
        ends[0].start(0xff_fffe, rnr_retry);
        ends[1].start(20, rnr_retry);
        let buffers = [1, 2].map(|number| Buffer::new(&rails[number - 1], vec![number as u8; 200_000]));
        Self { network, fabric, ends, buffers }
    }

    /// Lets time pass.
    fn pass(&self, time: Duration) {
        self.network.step(self.network.now() + time);
        self.fabric.progress();
    }

    fn settle(&self) {
        self.pass(Duration::from_millis(1));
    }

    /// The remote address of a node's buffer.
    fn remote(&self, node: usize) -> (u64, u32) {
        (self.buffers[node].address(), self.buffers[node].region.remote_key)
    }

    /// Asserts that both queue pairs are in the error state: what is posted is flushed.
    fn assert_failed(&self, node: usize) {
        self.ends[node].send(99, &self.buffers[node], 1).unwrap();
        self.settle();
        assert!(self.ends[node].statuses().contains(&(99, status::IBV_WC_WR_FLUSH_ERR)));
    }
}

/// A network, and two nodes with a device each.
fn fabric(model: fn(&str, u16) -> DeviceModel) -> (Network, Fabric) {
    let network = network();
    let fabric = Fabric::beside(&network, 5, Duration::from_micros(1)..Duration::from_micros(20));
    for node in 0..2 {
        assert_eq!(Node::new(&network, |_| ()).number(), node);
        fabric.add_node(node, vec![model("fake0", node as u16 + 1)]);
    }
    (network, fabric)
}

#[test]
fn a_completion_has_the_layout_of_verbs() {
    assert_eq!(size_of::<WorkCompletion>(), size_of::<ffi::ibv_wc>());
    assert_eq!(align_of::<WorkCompletion>(), align_of::<ffi::ibv_wc>());
    let offsets = [
        std::mem::offset_of!(WorkCompletion, imm_data) - std::mem::offset_of!(ffi::ibv_wc, imm_data),
        std::mem::offset_of!(WorkCompletion, qp_num) - std::mem::offset_of!(ffi::ibv_wc, qp_num),
        std::mem::offset_of!(WorkCompletion, wc_flags) - std::mem::offset_of!(ffi::ibv_wc, wc_flags),
        std::mem::offset_of!(WorkCompletion, dlid_path_bits) - std::mem::offset_of!(ffi::ibv_wc, dlid_path_bits),
    ];
    assert_eq!(offsets, [0; 4]);
    let ours = WorkCompletion { wr_id: 1, status: 2, opcode: 3, vendor_err: 4, byte_len: 5, ..Default::default() };
    // SAFETY: both consist of integers and have the same size.
    let verbs = unsafe { std::mem::transmute::<WorkCompletion, ffi::ibv_wc>(ours) };
    assert_eq!((verbs.wr_id(), verbs.error(), verbs.opcode(), verbs.len()), (1, Some((2, 4)), 3, 5));
}

#[test]
fn sends_arrive_in_order_with_and_without_immediate_data() {
    for model in [DeviceModel::infiniband, DeviceModel::roce] {
        let (network, fabric) = fabric(model);
        let two = Two::on(network, fabric, 7);
        let [a, b] = &two.ends;
        b.receive(1, &two.buffers[1], 50_000).unwrap();
        b.receive(2, &two.buffers[1], 50_000).unwrap();
        a.send(3, &two.buffers[0], 30_000).unwrap();
        a.post(4, opcode::IBV_WR_SEND_WITH_IMM, 0, two.buffers[0].piece(0), (0, 0)).unwrap();
        two.settle();
        let received = b.poll();
        assert_eq!(received.iter().map(|c| (c.wr_id(), c.len())).collect::<Vec<_>>(), [(1, 30_000), (2, 0)]);
        assert_eq!(received.iter().map(ffi::ibv_wc::imm_data).collect::<Vec<_>>(), [None, Some(0x1234)]);
        assert!(received.iter().all(|c| c.opcode() == ffi::ibv_wc_opcode::IBV_WC_RECV && c.qp_num == b.pair.number));
        assert_eq!(two.buffers[1].read()[..30_001].iter().filter(|byte| **byte == 1).count(), 30_000);
        // The second was not signaled.
        assert_eq!(a.statuses(), [(3, status::IBV_WC_SUCCESS)]);
        let counts = two.fabric.counts(0);
        assert_eq!((counts.sends, counts.doorbells, counts.bytes, counts.completions), ([1, 1], [2, 0], 30_000, 1));
        assert_eq!(two.fabric.rnr(), 0);
    }
}

#[test]
fn memory_is_written_and_read() {
    let two = Two::new();
    let [a, b] = &two.ends;
    b.receive(1, &two.buffers[1], 0).unwrap();
    a.post(2, opcode::IBV_WR_RDMA_WRITE, SIGNALED, two.buffers[0].piece(1000), two.remote(1)).unwrap();
    let (address, key) = two.remote(1);
    let piece = two.buffers[0].piece(10);
    a.post(3, opcode::IBV_WR_RDMA_WRITE_WITH_IMM, SIGNALED, piece, (address + 2000, key)).unwrap();
    two.settle();
    assert_eq!(a.statuses(), [(2, status::IBV_WC_SUCCESS), (3, status::IBV_WC_SUCCESS)]);
    let received = b.poll();
    assert_eq!((received.len(), received[0].len(), received[0].imm_data()), (1, 10, Some(0x1234)));
    assert_eq!(received[0].opcode(), ffi::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
    let now = two.buffers[1].read();
    assert!(now.iter().enumerate().all(|(i, byte)| (*byte == 1) == (i < 1000 || (2000..2010).contains(&i))));
    // More than may be read at one time; then what was read is sent.
    for id in 0..5 {
        a.post(id, opcode::IBV_WR_RDMA_READ, 0, two.buffers[0].piece(500), (address + 1500, key)).unwrap();
    }
    b.receive(1, &two.buffers[1], 500).unwrap();
    a.post(9, opcode::IBV_WR_SEND, SIGNALED | FENCE, two.buffers[0].piece(500), (0, 0)).unwrap();
    two.settle();
    assert_eq!(a.statuses(), [(9, status::IBV_WC_SUCCESS)]);
    assert!(two.buffers[0].read()[..500].iter().all(|byte| *byte == 2));
    assert!(two.buffers[1].read()[..500].iter().all(|byte| *byte == 2));
    assert_eq!(two.fabric.counts(0).reads, 5);
}

#[test]
fn inline_data_is_copied_and_other_data_read_later() {
    let two = Two::new();
    let [a, b] = &two.ends;
    let mut own = [7u8; 10];
    let piece = ffi::ibv_sge { addr: own.as_ptr().expose_provenance() as u64, length: 10, lkey: 0 };
    a.post(1, opcode::IBV_WR_RDMA_WRITE, SIGNALED | INLINE, piece, two.remote(1)).unwrap();
    own.fill(8);
    let too_much = a.post(1, opcode::IBV_WR_SEND, INLINE, two.buffers[0].piece(65), (0, 0)).unwrap_err();
    assert_eq!(too_much.raw_os_error(), Some(libc::EINVAL));
    b.post(2, opcode::IBV_WR_RDMA_WRITE, SIGNALED, two.buffers[1].piece(20), two.remote(0)).unwrap();
    // SAFETY: nothing accesses the buffer at the same time.
    unsafe { two.buffers[1].bytes.as_ptr().cast_mut().add(19).write_volatile(9) };
    two.settle();
    assert_eq!(&two.buffers[1].read()[..10], [7; 10]);
    assert_eq!(two.buffers[0].read()[19], 9);
    assert_eq!(own, [8; 10]);
}

#[test]
fn states_and_attributes_are_checked() {
    let (_, fabric) = fabric(DeviceModel::roce);
    let rails = [0, 1].map(|node| fabric.rails(node).remove(0));
    let [a, b] = rails.each_ref().map(End::new);
    let buffer = Buffer::new(&rails[0], vec![0; 10]);
    let refused = |result: io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    refused(a.receive(1, &buffer, 10));
    refused(a.listen(&b, 1));
    a.initialise();
    a.receive(1, &buffer, 10).unwrap();
    refused(a.send(2, &buffer, 10));
    refused(a.listen(&b, 0x100_0000));
    let attributes = ffi::ibv_qp_attr { qp_state: state::IBV_QPS_SQD, ..Default::default() };
    refused(a.pair.modify(attributes, mask::IBV_QP_STATE));
    let attributes = ffi::ibv_qp_attr { qp_state: state::IBV_QPS_RTR, ..Default::default() };
    refused(a.pair.modify(attributes, mask::IBV_QP_STATE | mask::IBV_QP_AV));
    a.listen(&b, 1).unwrap();
    refused(a.send(2, &buffer, 10));
    a.start(1, 7);
    a.send(2, &buffer, 10).unwrap();
    for id in 3..18 {
        a.send(id, &buffer, 10).unwrap();
    }
    assert_eq!(a.send(18, &buffer, 10).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
}

#[test]
fn failed_requests_flush_the_others_in_order() {
    let two = Two::new();
    let [a, b] = &two.ends;
    two.fabric.fail_request(0, 1, status::IBV_WC_GENERAL_ERR);
    for id in 0..3 {
        b.receive(id, &two.buffers[1], 100).unwrap();
        a.receive(10 + id, &two.buffers[0], 100).unwrap();
        a.post(id, opcode::IBV_WR_SEND, 0, two.buffers[0].piece(10), (0, 0)).unwrap();
    }
    two.settle();
    let of = |receives: bool, all: &[(u64, Status)]| -> Vec<(u64, Status)> {
        all.iter().filter(|(id, _)| (*id >= 10) == receives).copied().collect()
    };
    let all = a.statuses();
    assert_eq!(of(false, &all), [(1, status::IBV_WC_GENERAL_ERR), (2, status::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(of(true, &all), [10, 11, 12].map(|id| (id, status::IBV_WC_WR_FLUSH_ERR)));
    assert_eq!(b.statuses(), [(0, status::IBV_WC_SUCCESS)]);
    // The peer does not know; its requests are not answered any more.
    b.send(5, &two.buffers[1], 1).unwrap();
    two.pass(Duration::from_micros(4 * 4194 - 100));
    assert_eq!(b.statuses(), []);
    two.settle();
    assert_eq!(b.statuses()[0], (5, status::IBV_WC_RETRY_EXC_ERR));
    b.fail();
    two.assert_failed(1);
}

#[test]
fn a_message_that_is_longer_than_its_receive_request_breaks_both_ends() {
    let two = Two::new();
    let [a, b] = &two.ends;
    b.receive(1, &two.buffers[1], 99).unwrap();
    b.receive(2, &two.buffers[1], 99).unwrap();
    a.send(3, &two.buffers[0], 100).unwrap();
    two.settle();
    assert_eq!(a.statuses(), [(3, status::IBV_WC_REM_INV_REQ_ERR)]);
    assert_eq!(b.statuses(), [(1, status::IBV_WC_LOC_LEN_ERR), (2, status::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(two.buffers[1].read()[0], 2);
    two.assert_failed(0);
    two.assert_failed(1);
}

#[test]
fn remote_keys_are_checked() {
    let write = (opcode::IBV_WR_RDMA_WRITE, 100);
    let read = (opcode::IBV_WR_RDMA_READ, 100);
    let shift = |two: &Two, by: u64| (two.remote(1).0 + by, two.remote(1).1);
    for ((kind, bytes), by) in [(write, 200_000 - 99), (read, 200_000 - 99), (write, u64::MAX - 50)] {
        let two = Two::new();
        let to = if by > 1 << 40 { (u64::MAX - 50, two.remote(1).1) } else { shift(&two, by) };
        two.ends[0].post(1, kind, 0, two.buffers[0].piece(bytes), to).unwrap();
        two.settle();
        assert_eq!(two.ends[0].statuses(), [(1, status::IBV_WC_REM_ACCESS_ERR)]);
        two.assert_failed(1);
    }
    let two = Two::new();
    let to = (two.remote(1).0, two.buffers[1].region.local_key);
    two.ends[0].post(1, opcode::IBV_WR_RDMA_WRITE, 0, two.buffers[0].piece(1), to).unwrap();
    two.settle();
    assert_eq!(two.ends[0].statuses(), [(1, status::IBV_WC_REM_ACCESS_ERR)]);
    let event = two.ends[1].rail.domain.context().take_event();
    assert_eq!(event, Some(ffi::IBV_EVENT_QP_ACCESS_ERR));
}

#[test]
fn local_keys_and_lengths_are_checked() {
    let two = Two::new();
    let mut piece = two.buffers[0].piece(10);
    piece.lkey = two.buffers[1].region.local_key;
    two.ends[0].post(1, opcode::IBV_WR_RDMA_WRITE, 0, piece, two.remote(1)).unwrap();
    two.settle();
    assert_eq!(two.ends[0].statuses(), [(1, status::IBV_WC_LOC_PROT_ERR)]);
    let two = Two::new();
    two.ends[0].post(1, opcode::IBV_WR_RDMA_WRITE, 0, two.buffers[0].piece(100_001), two.remote(1)).unwrap();
    two.settle();
    assert_eq!(two.ends[0].statuses(), [(1, status::IBV_WC_LOC_LEN_ERR)]);
}

#[test]
fn a_message_without_receive_request_waits() {
    let two = Two::new();
    let [a, b] = &two.ends;
    a.send(1, &two.buffers[0], 10).unwrap();
    a.post(2, opcode::IBV_WR_SEND, SIGNALED, two.buffers[0].piece(20), (0, 0)).unwrap();
    two.settle();
    assert!(two.fabric.rnr() > 0);
    assert_eq!(a.statuses(), []);
    b.receive(3, &two.buffers[1], 100).unwrap();
    b.receive(4, &two.buffers[1], 100).unwrap();
    two.settle();
    assert_eq!(a.statuses(), [(1, status::IBV_WC_SUCCESS), (2, status::IBV_WC_SUCCESS)]);
    assert_eq!(b.poll().iter().map(|c| (c.wr_id(), c.len())).collect::<Vec<_>>(), [(3, 10), (4, 20)]);
    let (network, fabric) = fabric(DeviceModel::infiniband);
    let two = Two::on(network, fabric, 2);
    two.ends[0].send(1, &two.buffers[0], 10).unwrap();
    two.pass(Duration::from_millis(10));
    assert_eq!(two.ends[0].statuses(), [(1, status::IBV_WC_RNR_RETRY_EXC_ERR)]);
    assert_eq!(two.fabric.rnr(), 3);
}

#[test]
fn nothing_is_accessed_after_destruction() {
    for seed in 0..20 {
        let two = Two::new();
        let Two { network, fabric, ends: [a, b], buffers: [from, to] } = two;
        let remote = (to.address(), to.region.remote_key);
        a.post(1, opcode::IBV_WR_RDMA_WRITE, SIGNALED, from.piece(1000), remote).unwrap();
        network.step(network.now() + Duration::from_micros(seed * 2));
        drop(b);
        let before = to.read();
        drop(to);
        network.step(network.now() + Duration::from_millis(100));
        fabric.progress();
        let written = before[0] == 1;
        let status = a.statuses()[0].1;
        assert!(status == status::IBV_WC_RETRY_EXC_ERR || written, "{seed}: {status}");
        drop((a, from));
        fabric.assert_clean();
    }
}

#[test]
fn both_ends_must_agree() {
    let cases: [fn(&End, &End, &End); 3] =
        [|a, b, _| a.listen(b, 21).unwrap(), |a, _, other| a.listen(other, 20).unwrap(), |_, _, _| ()];
    for (number, case) in cases.into_iter().enumerate() {
        let (network, fabric) = fabric(DeviceModel::roce);
        let rails = [0, 1].map(|node| fabric.rails(node).remove(0));
        let [a, b] = rails.each_ref().map(End::new);
        let other = End::new(&rails[1]);
        [&a, &b, &other].into_iter().for_each(End::initialise);
        case(&a, &b, &other);
        b.listen(&a, 5).unwrap();
        b.start(20, 7);
        let buffer = Buffer::new(&rails[1], vec![0; 10]);
        b.send(1, &buffer, 10).unwrap();
        network.step(network.now() + Duration::from_millis(20));
        assert_eq!(b.statuses(), [(1, status::IBV_WC_RETRY_EXC_ERR)], "case {number}");
    }
}

#[test]
fn a_full_completion_queue_breaks() {
    let two = Two::new();
    let rail = &two.ends[0].rail;
    let queue = CompletionQueue::new(rail.domain.context().clone(), 1).unwrap();
    let pair = QueuePair::new(&rail.domain, &queue, CAPACITY).unwrap();
    let end = End { pair, queue, rail: rail.clone() };
    end.initialise();
    end.receive(1, &two.buffers[0], 1).unwrap();
    end.receive(2, &two.buffers[0], 1).unwrap();
    end.fail();
    two.settle();
    // SAFETY: a completion consists of integers.
    let mut into: [ffi::ibv_wc; 4] = unsafe { std::mem::zeroed() };
    assert!(end.queue.poll(&mut into).is_err());
    assert_eq!(rail.domain.context().take_event(), Some(ffi::IBV_EVENT_CQ_ERR));
}

#[test]
fn channels_become_readable_for_armed_queues_only() {
    let two = Two::new();
    let [a, b] = &two.ends;
    let readable = |end: &End| {
        let mut poll = libc::pollfd { fd: end.queue.descriptor(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry is valid.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    };
    for id in 0..3 {
        b.receive(id, &two.buffers[1], 10).unwrap();
    }
    a.send(1, &two.buffers[0], 10).unwrap();
    two.settle();
    assert!(!readable(a) && !readable(b));
    b.queue.arm().unwrap();
    assert!(!readable(b), "completions that were there before do not count");
    a.send(2, &two.buffers[0], 10).unwrap();
    a.send(3, &two.buffers[0], 10).unwrap();
    two.settle();
    assert!(readable(b) && !readable(a));
    b.queue.take_events();
    assert!(!readable(b));
    assert_eq!(b.poll().len(), 3);
}

#[test]
fn registration_is_limited_and_observed() {
    let two = Two::new();
    let seen = Arc::new(AtomicUsize::new(0));
    let (calls, network) = (seen.clone(), two.network.clone());
    two.fabric.on_registration(move |node, bytes| {
        calls.fetch_add(node * 1000 + bytes, Ordering::Relaxed);
        network.step(network.now() + Duration::from_secs(1));
    });
    two.fabric.limit_registered_bytes(1, 200_500);
    let before = two.network.now();
    let rail = &two.ends[1].rail;
    let some = Buffer::new(rail, vec![0; 300]);
    assert_eq!(seen.load(Ordering::Relaxed), 1300);
    assert_eq!(two.network.now() - before, Duration::from_secs(1));
    let mut more = vec![0; 300];
    // SAFETY: the region is not created.
    let refused = unsafe { MemoryRegion::new(&rail.domain, more.as_mut_ptr(), 300) };
    assert_eq!(refused.err().and_then(|error| error.raw_os_error()), Some(libc::ENOMEM));
    drop(some);
    Buffer::new(rail, vec![0; 300]);
    assert_eq!(two.fabric.counts(1).registrations, 3);
    assert_eq!(two.fabric.alive(1).registered_bytes, 200_000);
}

#[test]
fn ports_go_down_and_devices_vanish() {
    let two = Two::new();
    let [a, b] = &two.ends;
    let context = a.rail.domain.context();
    assert_eq!(context.take_event(), None);
    two.fabric.set_port(0, 0, 1, false);
    assert_eq!(context.take_event(), Some(ffi::IBV_EVENT_PORT_ERR));
    assert_eq!(context.query_port(1).unwrap().state, ffi::ibv_port_state::IBV_PORT_DOWN);
    b.send(1, &two.buffers[1], 10).unwrap();
    two.pass(Duration::from_millis(20));
    assert_eq!(b.statuses(), [(1, status::IBV_WC_RETRY_EXC_ERR)]);
    two.fabric.remove_device(0, 0);
    assert_eq!(context.take_event(), Some(ffi::IBV_EVENT_DEVICE_FATAL));
    assert_eq!(a.send(1, &two.buffers[0], 10).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(context.query().unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(two.fabric.rails(0).is_empty());
}

#[test]
fn a_crashed_node_does_not_answer_and_a_silent_one_does() {
    for (fate, expected) in
        [(NodeStatus::Crashed, status::IBV_WC_RETRY_EXC_ERR), (NodeStatus::Silent, status::IBV_WC_SUCCESS)]
    {
        let two = Two::new();
        two.network.fail(1, fate);
        two.ends[0].post(1, opcode::IBV_WR_RDMA_WRITE, SIGNALED, two.buffers[0].piece(10), two.remote(1)).unwrap();
        two.pass(Duration::from_millis(20));
        assert_eq!(two.ends[0].statuses(), [(1, expected)]);
        assert_eq!(two.buffers[1].read()[0] == 1, fate == NodeStatus::Silent);
        assert!(two.fabric.rails_or_error(1).is_err());
        let Two { fabric, ends, buffers, .. } = two;
        drop((ends, buffers));
        fabric.assert_clean();
    }
}

#[test]
fn the_network_wakes_nodes_for_completions() {
    let (network, fabric) = fabric(DeviceModel::infiniband);
    let two = Two::on(network, fabric, 7);
    two.ends[1].receive(1, &two.buffers[1], 10).unwrap();
    two.ends[0].send(2, &two.buffers[0], 10).unwrap();
    assert!(two.fabric.next_event().is_some());
    let mut got = [0, 0];
    while let Some((at, node)) = [0, 1].into_iter().filter_map(|n| Some((two.network.next_event(n)?, n))).min() {
        two.network.step(at);
        two.network.woken(node);
        got[node] += two.ends[node].poll().len();
        if got == [1, 1] {
            return;
        }
    }
    panic!("{got:?} completions have come");
}

#[test]
fn completions_of_different_pairs_come_in_any_order() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..30 {
        let fabric = Fabric::beside(&network(), seed, Duration::from_micros(1)..Duration::from_micros(20));
        let network = match &fabric.0.time {
            Time::Of(network) => network.clone(),
            Time::By(_) => unreachable!(),
        };
        fabric.add_node(0, vec![DeviceModel::roce("fake0", 1)]);
        let rail = fabric.rails(0).remove(0);
        let queue = CompletionQueue::new(rail.domain.context().clone(), 64).unwrap();
        let end = || End {
            pair: QueuePair::new(&rail.domain, &queue, CAPACITY).unwrap(),
            queue: queue.clone(),
            rail: rail.clone(),
        };
        let ends = [end(), end(), end(), end()];
        let buffer = Buffer::new(&rail, vec![0; 10]);
        ends.iter().for_each(End::initialise);
        for (at, peer) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
            ends[at].listen(&ends[peer], 0).unwrap();
            ends[at].start(0, 7);
        }
        for id in [0, 2] {
            let to = (buffer.address(), buffer.region.remote_key);
            ends[id as usize].post(id, opcode::IBV_WR_RDMA_WRITE, SIGNALED, buffer.piece(1), to).unwrap();
            ends[id as usize].post(id + 1, opcode::IBV_WR_RDMA_WRITE, SIGNALED, buffer.piece(1), to).unwrap();
        }
        network.step(network.now() + Duration::from_millis(1));
        let order: Vec<u64> = ends[0].poll().iter().map(ffi::ibv_wc::wr_id).collect();
        let place = |id| order.iter().position(|other| *other == id).unwrap();
        assert!(place(0) < place(1) && place(2) < place(3));
        orders.insert(order);
    }
    assert!(orders.len() > 3, "{orders:?}");
}

#[test]
fn it_runs_by_another_clock_and_in_the_background() {
    let fabric = Fabric::with_clock(Instant::now, 1, Duration::ZERO..Duration::from_micros(100));
    for node in 0..2 {
        fabric.add_node(node, vec![DeviceModel::roce("fake0", node as u16)]);
    }
    let network = network();
    let two = Two::on(network, fabric.clone(), 7);
    let background = fabric.in_background();
    two.ends[1].queue.arm().unwrap();
    two.ends[1].receive(1, &two.buffers[1], 10).unwrap();
    two.ends[0].send(1, &two.buffers[0], 10).unwrap();
    let mut poll = libc::pollfd { fd: two.ends[1].queue.descriptor(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry is valid.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 10_000) }, 1);
    assert_eq!(two.ends[1].statuses(), [(1, status::IBV_WC_SUCCESS)]);
    drop(background);
    fabric.fail(1, NodeStatus::Crashed);
    assert!(fabric.rails_or_error(1).is_err());
}
