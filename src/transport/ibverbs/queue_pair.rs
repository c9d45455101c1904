//! The states of a reliable-connected queue pair: RESET, INIT, RTR (ready to receive), RTS (ready to send).

use std::io;

use ibverbs_sys as ffi;

use super::endpoint::Peer;
use super::handles::QueuePair;
use super::port::LinkLayer;
use super::rail::{PathOptions, Rail};

/// How long a sender waits that finds no receive posted: 0.64 ms. Credits keep that from happening.
const RNR_TIMER: u8 = 12;
/// A sender that finds no receive posted tries again without limit.
const RNR_RETRY: u8 = 7;
const HOP_LIMIT: u8 = 64;

/// To INIT: receives may be posted.
pub fn initialise(pair: &QueuePair, rail: &Rail) -> io::Result<()> {
    let access = ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    let attributes = ffi::ibv_qp_attr {
        qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
        port_num: rail.port,
        qp_access_flags: access.0,
        ..Default::default()
    };
    pair.modify(
        attributes,
        ffi::ibv_qp_attr_mask::IBV_QP_STATE
            | ffi::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ffi::ibv_qp_attr_mask::IBV_QP_PORT
            | ffi::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
    )
}

/// From INIT to RTR and RTS: the pair receives from `peer`, and may send. Its first packet has the number `packet`; it
/// serves `serves` RDMA reads at one time, and the peer's serves `served`.
pub fn connect(
    pair: &QueuePair,
    rail: &Rail,
    peer: &Peer,
    packet: u32,
    path: &PathOptions,
    [serves, served]: [u8; 2],
) -> io::Result<()> {
    let mut address = ffi::ibv_ah_attr { dlid: peer.lid, port_num: rail.port, ..Default::default() };
    // Within an InfiniBand subnet, whose prefix is in the first half of a GID, the LID is enough.
    if rail.link_layer == LinkLayer::Ethernet || rail.gid[..8] != peer.gid[..8] {
        address.is_global = 1;
        address.grh = ffi::ibv_global_route {
            dgid: ffi::ibv_gid { raw: peer.gid },
            sgid_index: rail.gid_index,
            hop_limit: HOP_LIMIT,
            traffic_class: path.traffic_class,
            ..Default::default()
        };
    }
    let to_receive = ffi::ibv_qp_attr {
        qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
        path_mtu: rail.mtu.min(peer.mtu.into()),
        dest_qp_num: peer.number,
        rq_psn: peer.packet,
        max_dest_rd_atomic: serves,
        min_rnr_timer: RNR_TIMER,
        ah_attr: address,
        ..Default::default()
    };
    pair.modify(
        to_receive,
        ffi::ibv_qp_attr_mask::IBV_QP_STATE
            | ffi::ibv_qp_attr_mask::IBV_QP_AV
            | ffi::ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ffi::ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ffi::ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ffi::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER,
    )?;
    let to_send = ffi::ibv_qp_attr {
        qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
        timeout: path.timeout,
        retry_cnt: path.retry_count,
        rnr_retry: RNR_RETRY,
        sq_psn: packet,
        max_rd_atomic: served,
        ..Default::default()
    };
    pair.modify(
        to_send,
        ffi::ibv_qp_attr_mask::IBV_QP_STATE
            | ffi::ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ffi::ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ffi::ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ffi::ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ffi::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC,
    )
}
