//! The functions of the table, which programs call in place of libibverbs.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, PoisonError};

use ibverbs_sys as ffi;

use super::state::objects::{self, EventCount, ListedDevice, Pointer, WorkCompletion, destroy, of, with};
use super::state::packets::{Piece, Request, copy_inline};
use super::state::{Armed, Channel, Context, Element, Place, Queue, State};
use super::transitions::Parts;
use super::{CURRENT, Shared, set_errno};
use crate::testing::loopback::NodeStatus;
use crate::transport::ibverbs::library::Functions;
use crate::transport::ibverbs::port::LinkLayer;

/// All functions.
pub const TABLE: Functions = Functions {
    get_device_list,
    free_device_list,
    get_device_name,
    open_device,
    close_device,
    query_device,
    query_port,
    query_gid_ex,
    alloc_pd,
    dealloc_pd,
    reg_mr,
    dereg_mr,
    create_comp_channel,
    destroy_comp_channel,
    create_cq,
    destroy_cq,
    get_cq_event,
    ack_cq_events,
    create_qp,
    modify_qp,
    destroy_qp,
    get_async_event,
    ack_async_event,
    fork_init,
};

/// `errno` of a result, or 0.
fn errno<T>(result: Result<T, c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// The pointer of a result; null after setting `errno`.
fn pointer<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ffi::ibv_device {
    let Some((fabric, node)) = CURRENT.with_borrow(Clone::clone) else {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    let names = fabric.call(|state| {
        let devices = state.node(node).devices.iter().enumerate().filter(|(_, device)| !device.removed);
        devices.map(|(index, device)| (index, device.model.name.clone())).collect::<Vec<_>>()
    });
    let devices = names.into_iter().map(|(index, name)| listed(&fabric, Place { node, device: index }, &name));
    // The real list ends with null, too.
    let list: Box<[*mut ffi::ibv_device]> = devices.chain([std::ptr::null_mut()]).collect();
    if !count.is_null() {
        // SAFETY: the caller guarantees that it is valid for writes.
        unsafe { *count = list.len() as c_int - 1 };
    }
    Box::into_raw(list).cast()
}

/// A device with a name.
fn listed(fabric: &Arc<Shared>, place: Place, name: &str) -> *mut ffi::ibv_device {
    let mut raw = ffi::ibv_device { node_type: ffi::IBV_NODE_CA, ..Default::default() };
    let name = CString::new(name).expect("a name without zeros");
    for (to, from) in raw.name[..63].iter_mut().zip(name.as_bytes()) {
        *to = *from as c_char;
    }
    let device = ListedDevice { raw, fabric: fabric.clone(), node: place.node, index: place.device };
    Box::into_raw(Box::new(device)).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ffi::ibv_device) {
    let mut devices = 0;
    // SAFETY: the list ends with null; it and its devices were made by `Box::into_raw` and are freed once. Contexts
    // have devices of their own.
    unsafe {
        while !(*list.add(devices)).is_null() {
            drop(Box::from_raw((*list.add(devices)).cast::<ListedDevice>()));
            devices += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, devices + 1)));
    }
}

unsafe extern "C" fn get_device_name(device: *mut ffi::ibv_device) -> *const c_char {
    // SAFETY: the caller guarantees that the device exists.
    unsafe { (&raw const (*device).name).cast() }
}

unsafe extern "C" fn open_device(device: *mut ffi::ibv_device) -> *mut ffi::ibv_context {
    // SAFETY: the caller guarantees that this is the first field of a listed device.
    let (fabric, place) = unsafe {
        let device = &*device.cast::<ListedDevice>();
        (device.fabric.clone(), Place { node: device.node, device: device.index })
    };
    let opened = fabric.call(|state| {
        let device = state.device(place);
        if device.removed || state.nodes[&place.node].status != NodeStatus::Running {
            return Err(libc::EIO);
        }
        let name = device.model.name.clone();
        Ok((state.new_id(), name))
    });
    let context = opened.map(|(id, name)| {
        let count = EventCount::new();
        let raw = ffi::ibv_context {
            device: listed(&fabric, place, &name),
            ops: ffi::ibv_context_ops {
                post_send: Some(post_send),
                post_recv: Some(post_recv),
                poll_cq: Some(poll_cq),
                req_notify_cq: Some(req_notify_cq),
                ..Default::default()
            },
            cmd_fd: -1,
            async_fd: count.descriptor(),
            num_comp_vectors: 1,
            ..Default::default()
        };
        let raw = objects::create(&fabric, id, raw);
        let context = Context { place, events: Default::default(), count };
        fabric.call(|state| state.contexts.insert(id, context));
        raw
    });
    pointer(context)
}

unsafe extern "C" fn close_device(context: *mut ffi::ibv_context) -> c_int {
    // SAFETY: the caller guarantees that the context exists, and does not use it if it is closed. Its device is its
    // own.
    unsafe {
        let device = (*context).device;
        let result = destroy(context, State::close);
        if result == 0 {
            drop(Box::from_raw(device.cast::<ListedDevice>()));
        }
        result
    }
}

unsafe extern "C" fn query_device(context: *mut ffi::ibv_context, into: *mut ffi::ibv_device_attr) -> c_int {
    // SAFETY: the caller guarantees that the context exists.
    let attributes = unsafe {
        with(context, |state, id| {
            let model = &state.device(state.check(id)?).model;
            Ok::<_, c_int>(ffi::ibv_device_attr {
                max_mr_size: u64::MAX,
                max_qp: model.max_pairs as c_int,
                max_qp_wr: model.max_requests as c_int,
                max_sge: model.max_pieces as c_int,
                max_cq: 4096,
                max_cqe: model.max_completions as c_int,
                max_mr: model.max_regions as c_int,
                max_pd: 4096,
                max_qp_rd_atom: model.max_reads[0].into(),
                max_qp_init_rd_atom: model.max_reads[1].into(),
                max_res_rd_atom: 4096,
                max_pkeys: 1,
                phys_port_cnt: model.ports.len() as u8,
                ..Default::default()
            })
        })
    };
    // SAFETY: the caller guarantees that `into` is valid for writes.
    errno(attributes.map(|attributes| unsafe { into.write(attributes) }))
}

unsafe extern "C" fn query_port(
    context: *mut ffi::ibv_context,
    port: u8,
    into: *mut ffi::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller guarantees that the context exists.
    let attributes = unsafe { with(context, |state, id| port_attributes(state, state.check(id)?, port)) };
    let known = std::mem::offset_of!(ffi::ibv_port_attr, port_cap_flags2);
    // SAFETY: the caller guarantees that `into` is valid for writes of the first fields, as old libraries have them.
    let write = |attributes: ffi::ibv_port_attr| unsafe {
        std::ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), into.cast(), known)
    };
    errno(attributes.map(write))
}

fn port_attributes(state: &State, place: Place, port: u8) -> Result<ffi::ibv_port_attr, c_int> {
    let port = state.port(place, port).ok_or(libc::EINVAL)?;
    let (active, down) = (ffi::ibv_port_state::IBV_PORT_ACTIVE, ffi::ibv_port_state::IBV_PORT_DOWN);
    let link_layer = match port.link_layer {
        LinkLayer::InfiniBand => ffi::IBV_LINK_LAYER_INFINIBAND,
        LinkLayer::Ethernet => ffi::IBV_LINK_LAYER_ETHERNET,
    };
    Ok(ffi::ibv_port_attr {
        state: if port.up { active } else { down },
        max_mtu: ffi::IBV_MTU_4096,
        active_mtu: port.mtu,
        gid_tbl_len: port.gids.len() as c_int,
        max_msg_sz: port.max_message,
        pkey_tbl_len: 1,
        lid: port.lid,
        active_width: port.width,
        active_speed: port.speed,
        phys_state: if port.up { 5 } else { 3 },
        link_layer: link_layer as u8,
        ..Default::default()
    })
}

unsafe extern "C" fn query_gid_ex(
    context: *mut ffi::ibv_context,
    port: u32,
    index: u32,
    into: *mut ffi::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 || size < size_of::<ffi::ibv_gid_entry>() {
        return libc::EINVAL;
    }
    // SAFETY: the caller guarantees that the context exists.
    let entry = unsafe {
        with(context, |state, id| {
            let place = state.check(id)?;
            let gids = &state.port(place, port as u8).ok_or(libc::EINVAL)?.gids;
            let (raw, gid_type) = gids.get(index as usize).ok_or(libc::EINVAL)?.ok_or(libc::ENODATA)?;
            let gid = ffi::ibv_gid { raw };
            Ok(ffi::ibv_gid_entry { gid, gid_index: index, port_num: port, gid_type, ndev_ifindex: 0 })
        })
    };
    // SAFETY: the caller guarantees that `into` is valid for writes.
    errno(entry.map(|entry| unsafe { into.write(entry) }))
}

unsafe extern "C" fn alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd {
    let allocate = |state: &mut State, context| {
        state.check(context)?;
        let id = state.new_id();
        state.domains.insert(id, context);
        Ok(id)
    };
    // SAFETY: the caller guarantees that the context exists.
    let (fabric, id) = unsafe { (of(context).0, with(context, allocate)) };
    pointer(id.map(|id| objects::create(&fabric, id, ffi::ibv_pd { context, handle: id })))
}

unsafe extern "C" fn dealloc_pd(domain: *mut ffi::ibv_pd) -> c_int {
    // SAFETY: the caller guarantees that the domain exists, and does not use it if it is destroyed.
    unsafe { destroy(domain, State::deallocate) }
}

unsafe extern "C" fn reg_mr(
    domain: *mut ffi::ibv_pd,
    memory: *mut c_void,
    bytes: usize,
    access: c_int,
) -> *mut ffi::ibv_mr {
    // SAFETY: the caller guarantees that the domain exists.
    let (fabric, id) = unsafe { of(domain) };
    let place = fabric.call(|state| state.place(state.domains[&id]));
    let hook = fabric.registration.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(hook) = hook {
        hook(place.node, bytes);
    }
    // Work requests name the memory by its address.
    let address = memory.expose_provenance() as u64;
    let key = fabric.call(|state| state.register(id, address, bytes as u64, access as u32));
    let region = key.map(|key| {
        // SAFETY: the domain exists.
        let context = unsafe { (*domain).context };
        let raw =
            ffi::ibv_mr { context, pd: domain, addr: memory, length: bytes, handle: key, lkey: key, rkey: key + 1 };
        objects::create(&fabric, key, raw)
    });
    pointer(region)
}

unsafe extern "C" fn dereg_mr(region: *mut ffi::ibv_mr) -> c_int {
    // SAFETY: the caller guarantees that the region exists, and does not use it afterwards.
    unsafe { destroy(region, State::deregister) }
}

unsafe extern "C" fn create_comp_channel(context: *mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel {
    let create = |state: &mut State, context| {
        state.check(context)?;
        let (id, count) = (state.new_id(), EventCount::new());
        let descriptor = count.descriptor();
        state.channels.insert(id, Channel { context, events: Default::default(), count });
        Ok((id, descriptor))
    };
    // SAFETY: the caller guarantees that the context exists.
    let (fabric, created) = unsafe { (of(context).0, with(context, create)) };
    pointer(created.map(|(id, fd)| objects::create(&fabric, id, ffi::ibv_comp_channel { context, fd, refcnt: 0 })))
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ffi::ibv_comp_channel) -> c_int {
    // SAFETY: the caller guarantees that the channel exists, and does not use it if it is destroyed.
    unsafe { destroy(channel, State::destroy_channel) }
}

unsafe extern "C" fn create_cq(
    context: *mut ffi::ibv_context,
    entries: c_int,
    user: *mut c_void,
    channel: *mut ffi::ibv_comp_channel,
    vector: c_int,
) -> *mut ffi::ibv_cq {
    // SAFETY: the caller guarantees that context and channel exist, the latter unless it is null.
    let (fabric, owner) = unsafe { of(context) };
    // SAFETY: as above.
    let channel_id = (!channel.is_null()).then(|| unsafe { of(channel).1 });
    let checked = fabric.call(|state| Ok((state.check_queue(owner, entries, vector)?, state.new_id())));
    let queue = checked.map(|(capacity, id)| {
        let raw = ffi::ibv_cq { context, channel, cq_context: user, handle: id, cqe: entries, ..Default::default() };
        let raw = objects::create(&fabric, id, raw);
        let queue = Queue {
            context: owner,
            raw: Pointer(raw),
            user: Pointer(user),
            channel: channel_id,
            capacity,
            entries: Default::default(),
            armed: None,
            broken: false,
            unacknowledged: 0,
        };
        fabric.call(|state| state.queues.insert(id, queue));
        raw
    });
    pointer(queue)
}

unsafe extern "C" fn destroy_cq(queue: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: the caller guarantees that the queue exists, and does not use it if it is destroyed.
    unsafe { destroy(queue, State::destroy_queue) }
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ffi::ibv_comp_channel,
    queue: *mut *mut ffi::ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees that the channel exists; what is due happens before its descriptor is read.
    let descriptor = unsafe {
        with(channel, |_, _| ());
        (*channel).fd
    };
    if !objects::take(descriptor) {
        return -1;
    }
    let take = |state: &mut State, id| {
        let id = state.channels.get_mut(&id)?.events.pop_front()?;
        let queue = state.queues.get_mut(&id)?;
        queue.unacknowledged += 1;
        Some((queue.raw, queue.user))
    };
    // SAFETY: as above; the others are valid for writes.
    unsafe {
        let Some((raw, data)) = with(channel, take) else { return -1 };
        *queue = raw.0;
        *user = data.0;
    }
    0
}

unsafe extern "C" fn ack_cq_events(queue: *mut ffi::ibv_cq, count: c_uint) {
    let acknowledge = |state: &mut State, id| {
        let queue = state.queues.get_mut(&id).expect("the queue exists");
        if queue.unacknowledged < count {
            state.misuse.push("more events are acknowledged than were taken".to_owned());
            return;
        }
        queue.unacknowledged -= count;
    };
    // SAFETY: the caller guarantees that the queue exists.
    unsafe { with(queue, acknowledge) };
}

unsafe extern "C" fn create_qp(domain: *mut ffi::ibv_pd, attributes: *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp {
    // SAFETY: the caller guarantees that all of this exists.
    let (attributes, fabric, domain_id) = unsafe { (&*attributes, of(domain).0, of(domain).1) };
    if attributes.qp_type != ffi::ibv_qp_type::IBV_QPT_RC || !attributes.srq.is_null() {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    if attributes.send_cq.is_null() || attributes.recv_cq.is_null() {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: the caller guarantees that the queues exist.
    let (send_queue, receive_queue) = unsafe { (of(attributes.send_cq).1, of(attributes.recv_cq).1) };
    let (capacity, signal_all) = (attributes.cap, attributes.sq_sig_all != 0);
    let parts = Parts { domain: domain_id, send_queue, receive_queue, capacity, signal_all };
    let created = fabric.call(|state| {
        let id = state.create_pair(parts)?;
        Ok((id, state.pairs[&id].number))
    });
    let pair = created.map(|(id, number)| {
        let raw = ffi::ibv_qp {
            // SAFETY: the domain exists.
            context: unsafe { (*domain).context },
            qp_context: attributes.qp_context,
            pd: domain,
            send_cq: attributes.send_cq,
            recv_cq: attributes.recv_cq,
            handle: id,
            qp_num: number,
            state: ffi::ibv_qp_state::IBV_QPS_RESET,
            qp_type: attributes.qp_type,
            ..Default::default()
        };
        let raw = objects::create(&fabric, id, raw);
        fabric.call(|state| {
            if let Some(pair) = state.pairs.get_mut(&id) {
                pair.raw = Pointer(raw);
            }
        });
        raw
    });
    pointer(pair)
}

unsafe extern "C" fn modify_qp(pair: *mut ffi::ibv_qp, attributes: *mut ffi::ibv_qp_attr, given: c_int) -> c_int {
    // SAFETY: the caller guarantees that the pair exists, and that the attributes are valid for reads.
    let result = unsafe { with(pair, |state, id| state.modify(id, &*attributes, given as u32)) };
    // SAFETY: as above; only the caller accesses the structure.
    errno(result.map(|state| unsafe { (*pair).state = state }))
}

unsafe extern "C" fn destroy_qp(pair: *mut ffi::ibv_qp) -> c_int {
    // SAFETY: the caller guarantees that the pair exists, and does not use it afterwards.
    unsafe { destroy(pair, State::destroy_pair) }
}

unsafe extern "C" fn get_async_event(context: *mut ffi::ibv_context, into: *mut ffi::ibv_async_event) -> c_int {
    // SAFETY: the caller guarantees that the context exists; what is due happens before its descriptor is read.
    let descriptor = unsafe {
        with(context, |_, _| ());
        (*context).async_fd
    };
    if !objects::take(descriptor) {
        return -1;
    }
    // SAFETY: as above.
    let event = unsafe { with(context, |state, id| state.contexts.get_mut(&id)?.events.pop_front()) };
    let Some(event) = event else { return -1 };
    let element = match event.of {
        Element::Port(port) => ffi::ibv_async_event__bindgen_ty_1 { port_num: port.into() },
        Element::Queue(queue) => ffi::ibv_async_event__bindgen_ty_1 { cq: queue.0 },
        Element::Pair(pair) => ffi::ibv_async_event__bindgen_ty_1 { qp: pair.0 },
    };
    // SAFETY: the caller guarantees that `into` is valid for writes.
    unsafe { into.write(ffi::ibv_async_event { element, event_type: event.kind }) };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut ffi::ibv_async_event) {}

unsafe extern "C" fn fork_init() -> c_int {
    0
}

/// The pieces of a request.
///
/// # Safety
/// The list is valid for reads.
unsafe fn pieces(list: *const ffi::ibv_sge, count: c_int) -> Vec<Piece> {
    let piece = |index| {
        // SAFETY: the caller guarantees it.
        let ffi::ibv_sge { addr, length, lkey } = unsafe { *list.add(index) };
        Piece { address: addr, bytes: length, key: lkey }
    };
    (0..count.max(0) as usize).map(piece).collect()
}

/// A send request, with its data if that is inline: at most `max` bytes of it.
///
/// # Safety
/// All that the request names exists.
unsafe fn request(of: &ffi::ibv_send_wr, max: u32) -> Result<Request, c_int> {
    // SAFETY: the caller guarantees it.
    let pieces = unsafe { pieces(of.sg_list, of.num_sge) };
    let inline = of.send_flags & ffi::ibv_send_flags::IBV_SEND_INLINE.0 != 0;
    if inline && pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>() > max.into() {
        return Err(libc::EINVAL);
    }
    // SAFETY: integers share the memory, and the caller guarantees that inline data exists.
    let (immediate, rdma, inline) =
        unsafe { (of.__bindgen_anon_1.imm_data, of.wr.rdma, inline.then(|| copy_inline(&pieces))) };
    Ok(Request {
        sequence: 0,
        id: of.wr_id,
        opcode: of.opcode,
        flags: of.send_flags,
        immediate,
        remote: (rdma.remote_addr, rdma.rkey),
        pieces,
        inline,
        planned: None,
        psn: None,
        outcome: None,
    })
}

unsafe extern "C" fn post_send(
    pair: *mut ffi::ibv_qp,
    mut list: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    let post = |state: &mut State, id| {
        let (place, max) = (state.pairs[&id].place, state.pairs[&id].capacity.max_inline_data);
        state.node(place.node).counts.doorbells[0] += 1;
        while !list.is_null() {
            // SAFETY: the caller guarantees that the list exists.
            let result = unsafe { request(&*list, max) }.and_then(|request| state.post(id, request));
            if let Err(errno) = result {
                // SAFETY: the caller guarantees that it is valid for writes.
                unsafe { *bad = list };
                return errno;
            }
            // SAFETY: as above.
            list = unsafe { (*list).next };
        }
        0
    };
    // SAFETY: the caller guarantees that the pair exists.
    unsafe { with(pair, post) }
}

unsafe extern "C" fn post_recv(
    pair: *mut ffi::ibv_qp,
    mut list: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    let post = |state: &mut State, id| {
        let place = state.pairs[&id].place;
        state.node(place.node).counts.doorbells[1] += 1;
        while !list.is_null() {
            // SAFETY: the caller guarantees that the list exists.
            let (request, pieces) = unsafe { ((*list).wr_id, pieces((*list).sg_list, (*list).num_sge)) };
            if let Err(errno) = state.post_receive(id, request, pieces) {
                // SAFETY: the caller guarantees that it is valid for writes.
                unsafe { *bad = list };
                return errno;
            }
            // SAFETY: as above.
            list = unsafe { (*list).next };
        }
        0
    };
    // SAFETY: the caller guarantees that the pair exists.
    unsafe { with(pair, post) }
}

unsafe extern "C" fn poll_cq(queue: *mut ffi::ibv_cq, max: c_int, into: *mut ffi::ibv_wc) -> c_int {
    // SAFETY: the caller guarantees that the queue exists.
    let Some(taken) = (unsafe { with(queue, |state, id| state.poll(id, max.max(0) as usize)) }) else {
        return -libc::EIO;
    };
    for (index, completion) in taken.iter().enumerate() {
        // SAFETY: the caller guarantees room for `max`; the layout is that of `ibv_wc`, which a test checks.
        unsafe { into.add(index).cast::<WorkCompletion>().write(*completion) };
    }
    taken.len() as c_int
}

unsafe extern "C" fn req_notify_cq(queue: *mut ffi::ibv_cq, solicited_only: c_int) -> c_int {
    let arm = |state: &mut State, id| {
        let queue = state.queues.get_mut(&id).expect("the queue exists");
        let armed = if solicited_only != 0 { Armed::Solicited } else { Armed::Any };
        // A weaker demand does not replace a stronger one.
        if queue.armed != Some(Armed::Any) {
            queue.armed = Some(armed);
        }
        0
    };
    // SAFETY: the caller guarantees that the queue exists.
    unsafe { with(queue, arm) }
}
