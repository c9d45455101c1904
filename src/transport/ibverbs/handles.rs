//! Objects of verbs that are destroyed when they are dropped, each after what was made of it. In a child by fork
//! nothing is destroyed: the objects are the parent's.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ibverbs_sys as ffi;

use super::library::{self, Library, checked};
use crate::sys::{self, ForkMark, RawSocket, Waker};

/// An open device.
pub struct DeviceContext {
    library: Arc<Library>,
    raw: NonNull<ffi::ibv_context>,
    mark: ForkMark,
    health: Health,
}

/// What a device's asynchronous events have said. All contexts of a process share the device, and only one of them
/// takes each event.
#[derive(Default)]
struct Health {
    /// The device has failed, or was removed.
    is_gone: AtomicBool,
    /// Times that it or one of its ports has failed or become active.
    changes: AtomicU32,
    /// Threads that wait for a change.
    observers: Mutex<Vec<Weak<Waker>>>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for DeviceContext {}
// SAFETY: as above.
unsafe impl Sync for DeviceContext {}

/// What a function that returns a pointer has created.
fn created<T>(raw: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(io::Error::last_os_error)
}

/// Calls `visit` with each device of the system, and returns its results.
pub fn for_each_device<T>(
    library: &Arc<Library>,
    mut visit: impl FnMut(&str, &dyn Fn() -> io::Result<Arc<DeviceContext>>) -> T,
) -> io::Result<Vec<T>> {
    let mut count = 0;
    // SAFETY: `count` is valid for writes.
    let list = created(unsafe { (library.get_device_list)(&mut count) })?;
    let visit_one = |index: usize| {
        // SAFETY: the list has `count` devices, which exist until it is freed, or while they are open.
        let device = unsafe { *list.as_ptr().add(index) };
        // SAFETY: as above; a name ends with zero.
        let name = unsafe { CStr::from_ptr((library.get_device_name)(device)) }.to_string_lossy().into_owned();
        let open = || {
            // SAFETY: as above.
            let raw = created(unsafe { (library.open_device)(device) })?;
            let (library, health) = (library.clone(), Health::default());
            let context = DeviceContext { library, raw, mark: ForkMark::new()?, health };
            // The descriptor does not block, so that a look for an event does not wait for one.
            sys::socket::set_nonblocking(context.events())?;
            Ok(Arc::new(context))
        };
        visit(&name, &open)
    };
    let results = (0..count as usize).map(visit_one).collect();
    // SAFETY: the list is freed once, and not used afterwards.
    unsafe { (library.free_device_list)(list.as_ptr()) };
    Ok(results)
}

impl DeviceContext {
    /// The device's limits.
    pub fn query(&self) -> io::Result<ffi::ibv_device_attr> {
        let mut attributes = ffi::ibv_device_attr::default();
        // SAFETY: the device is open, and `attributes` valid for writes.
        checked(unsafe { (self.library.query_device)(self.raw.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    /// The attributes of a port; those that old libraries lack are zero.
    pub fn query_port(&self, port: u8) -> io::Result<ffi::ibv_port_attr> {
        let mut attributes = ffi::ibv_port_attr::default();
        // SAFETY: as above; the function writes the first fields.
        checked(unsafe { (self.library.query_port)(self.raw.as_ptr(), port, (&raw mut attributes).cast()) })?;
        Ok(attributes)
    }

    /// The entry of a port's table of GIDs at `index`; `None` if it is empty, or cannot be read.
    pub fn query_gid(&self, port: u8, index: u32) -> io::Result<Option<ffi::ibv_gid_entry>> {
        let mut entry = ffi::ibv_gid_entry::default();
        // SAFETY: as above; `entry` has the size that is given.
        let result = unsafe {
            (self.library.query_gid_ex)(self.raw.as_ptr(), port.into(), index, &mut entry, 0, size_of_val(&entry))
        };
        let told = sys::socket::told(checked(result))?;
        // SAFETY: every bit pattern is 16 bytes.
        Ok((told.is_some() && unsafe { entry.gid.raw } != [0; 16]).then_some(entry))
    }

    /// The descriptor of asynchronous events.
    pub fn events(&self) -> RawSocket {
        // SAFETY: the device is open.
        unsafe { (*self.raw.as_ptr()).async_fd }
    }

    /// Takes an asynchronous event, if there is one: its type.
    pub fn take_event(&self) -> Option<ffi::ibv_event_type> {
        let mut event = ffi::ibv_async_event::default();
        // SAFETY: the device is open, and `event` valid for writes; it is acknowledged once.
        unsafe {
            if (self.library.get_async_event)(self.raw.as_ptr(), &mut event) != 0 {
                return None;
            }
            (self.library.ack_async_event)(&mut event);
        }
        Some(event.event_type)
    }

    /// Takes all asynchronous events; wakes all observers if the state of the device or of a port has changed.
    pub fn take_events(&self) {
        let mut has_changed = false;
        while let Some(event) = self.take_event() {
            match event {
                ffi::IBV_EVENT_DEVICE_FATAL => self.health.is_gone.store(true, Ordering::Release),
                ffi::IBV_EVENT_PORT_ERR | ffi::IBV_EVENT_PORT_ACTIVE => {}
                _ => continue,
            }
            has_changed = true;
        }
        if has_changed {
            self.health.changes.fetch_add(1, Ordering::Release);
            let mut observers = self.health.observers.lock().unwrap_or_else(PoisonError::into_inner);
            observers.retain(|observer| observer.upgrade().inspect(|waker| waker.wake()).is_some());
        }
    }

    /// How often the state of the device or of a port has changed, as far as events that were taken say.
    pub fn changes(&self) -> u32 {
        self.health.changes.load(Ordering::Acquire)
    }

    /// Whether the device has failed or was removed, as far as events that were taken say.
    pub fn is_gone(&self) -> bool {
        self.health.is_gone.load(Ordering::Acquire)
    }

    /// From now on, `waker` is woken when [`DeviceContext::changes`] grows.
    pub fn observe(&self, waker: &Arc<Waker>) {
        let mut observers = self.health.observers.lock().unwrap_or_else(PoisonError::into_inner);
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(Arc::downgrade(waker));
    }

    /// Whether a parent process before fork has opened it.
    pub fn is_inherited(&self) -> bool {
        self.mark.is_child()
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: all that was made of it has kept it, and is gone.
            unsafe { (self.library.close_device)(self.raw.as_ptr()) };
        }
    }
}

/// A protection domain.
pub struct ProtectionDomain {
    context: Arc<DeviceContext>,
    raw: NonNull<ffi::ibv_pd>,
}

// SAFETY: as for the device.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A protection domain of a device.
    pub fn new(context: Arc<DeviceContext>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let raw = created(unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) })?;
        Ok(Arc::new(Self { context, raw }))
    }

    /// The device.
    pub fn context(&self) -> &Arc<DeviceContext> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if !self.context.is_inherited() {
            // SAFETY: all that was made of it has kept it, and is gone.
            unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
        }
    }
}

/// Registered memory.
pub struct MemoryRegion {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ffi::ibv_mr>,
    /// The key for work requests of this side.
    pub local_key: u32,
    /// The key for those of the other side.
    pub remote_key: u32,
}

// SAFETY: as for the device.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers memory, which this side may write, and the other side may read and write.
    ///
    /// # Safety
    /// The memory is mapped until the region is dropped.
    pub unsafe fn new(domain: &Arc<ProtectionDomain>, memory: *mut u8, bytes: usize) -> io::Result<Self> {
        let access = ffi::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ffi::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let library = &domain.context.library;
        // SAFETY: the domain exists; the caller guarantees that the memory does.
        let raw = created(unsafe {
            (library.reg_mr)(domain.raw.as_ptr(), memory.cast::<c_void>(), bytes, access.0 as c_int)
        })?;
        // SAFETY: the region was created just now.
        let (local_key, remote_key) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Self { domain: domain.clone(), raw, local_key, remote_key })
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if !self.domain.context.is_inherited() {
            // SAFETY: the region is deregistered once.
            unsafe { (self.domain.context.library.dereg_mr)(self.raw.as_ptr()) };
        }
    }
}

/// A completion queue and its channel.
pub struct CompletionQueue {
    context: Arc<DeviceContext>,
    channel: NonNull<ffi::ibv_comp_channel>,
    raw: NonNull<ffi::ibv_cq>,
}

// SAFETY: as for the device.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue with room for `entries` completions, whose channel does not block.
    pub fn new(context: Arc<DeviceContext>, entries: usize) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let channel = created(unsafe { (context.library.create_comp_channel)(context.raw.as_ptr()) })?;
        // SAFETY: device and channel exist.
        let created_queue = sys::socket::set_nonblocking(unsafe { (*channel.as_ptr()).fd }).and_then(|()| {
            // SAFETY: as above.
            created(unsafe {
                let (entries, none) = (entries as c_int, std::ptr::null_mut());
                (context.library.create_cq)(context.raw.as_ptr(), entries, none, channel.as_ptr(), 0)
            })
        });
        match created_queue {
            Ok(raw) => Ok(Arc::new(Self { context, channel, raw })),
            Err(error) => {
                // SAFETY: the channel has no queue.
                unsafe { (context.library.destroy_comp_channel)(channel.as_ptr()) };
                Err(error)
            }
        }
    }

    /// Takes completions, as many as there are and fit; returns their number.
    pub fn poll(&self, into: &mut [ffi::ibv_wc]) -> io::Result<usize> {
        // SAFETY: the queue exists.
        let count = unsafe { library::poll_cq(self.raw.as_ptr(), into) };
        usize::try_from(count).map_err(|_| io::Error::other("the completion queue is broken"))
    }

    /// Makes the channel's descriptor readable when a completion is added. Look once more for completions before
    /// sleeping.
    pub fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists.
        checked(unsafe { library::req_notify_cq(self.raw.as_ptr()) })
    }

    /// Takes the events of the channel, so that its descriptor is not readable any more.
    pub fn take_events(&self) {
        let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel exists, and does not block; each event is acknowledged once, to the queue that it is of.
        unsafe {
            while (self.context.library.get_cq_event)(self.channel.as_ptr(), &mut queue, &mut user) == 0 {
                (self.context.library.ack_cq_events)(queue, 1);
            }
        }
    }

    /// The channel's descriptor.
    pub fn descriptor(&self) -> RawSocket {
        // SAFETY: the channel exists.
        unsafe { (*self.channel.as_ptr()).fd }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.context.is_inherited() {
            return;
        }
        self.take_events();
        // SAFETY: the queue pairs that use the queue have kept it, and are gone; the channel has no other queue.
        unsafe {
            (self.context.library.destroy_cq)(self.raw.as_ptr());
            (self.context.library.destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Work requests in the send queue.
    pub sends: u32,
    /// Work requests in the receive queue.
    pub receives: u32,
    /// Bytes that a send request may contain instead of their address.
    pub inline: u32,
}

/// A reliable-connected queue pair.
pub struct QueuePair {
    domain: Arc<ProtectionDomain>,
    /// Where all its completions are added.
    _queue: Arc<CompletionQueue>,
    raw: NonNull<ffi::ibv_qp>,
    /// The queue pair's number on the device.
    pub number: u32,
    /// Bytes that a send request may contain instead of their address.
    pub inline: usize,
}

// SAFETY: as for the device.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// A queue pair in state RESET. Requests cause completions only if they ask for one.
    pub fn new(domain: &Arc<ProtectionDomain>, queue: &Arc<CompletionQueue>, capacity: Capacity) -> io::Result<Self> {
        let attributes = |inline| ffi::ibv_qp_init_attr {
            send_cq: queue.raw.as_ptr(),
            recv_cq: queue.raw.as_ptr(),
            cap: ffi::ibv_qp_cap {
                max_send_wr: capacity.sends,
                max_recv_wr: capacity.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        let library = &domain.context.library;
        // A device refuses more inline bytes than it supports; none says how many that is.
        let mut attempts = [capacity.inline, 64, 0].into_iter();
        loop {
            let inline = attempts.next().unwrap_or(0);
            let mut attributes = attributes(inline);
            // SAFETY: domain and queue exist, and the attributes are valid for reads and writes.
            match created(unsafe { (library.create_qp)(domain.raw.as_ptr(), &mut attributes) }) {
                Ok(raw) => {
                    // SAFETY: the queue pair was created just now.
                    let number = unsafe { (*raw.as_ptr()).qp_num };
                    let inline = attributes.cap.max_inline_data as usize;
                    return Ok(Self { domain: domain.clone(), _queue: queue.clone(), raw, number, inline });
                }
                Err(error) if inline == 0 => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Changes the attributes in `mask`.
    pub fn modify(&self, mut attributes: ffi::ibv_qp_attr, mask: ffi::ibv_qp_attr_mask) -> io::Result<()> {
        // SAFETY: the queue pair exists.
        checked(unsafe { (self.domain.context.library.modify_qp)(self.raw.as_ptr(), &mut attributes, mask.0 as c_int) })
    }

    /// Posts a list of send requests with one call.
    ///
    /// # Safety
    /// The memory that the requests name is valid until their completion, or until the queue pair is dropped.
    pub unsafe fn post_send(&self, list: &mut ffi::ibv_send_wr) -> io::Result<()> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue pair exists; the caller guarantees the rest.
        checked(unsafe { library::post_send(self.raw.as_ptr(), list, &mut bad) })
    }

    /// Posts a list of receive requests with one call.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`]; nothing else accesses the memory meanwhile.
    pub unsafe fn post_receive(&self, list: &mut ffi::ibv_recv_wr) -> io::Result<()> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as above.
        checked(unsafe { library::post_recv(self.raw.as_ptr(), list, &mut bad) })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if !self.domain.context.is_inherited() {
            // SAFETY: the queue pair is destroyed once.
            unsafe { (self.domain.context.library.destroy_qp)(self.raw.as_ptr()) };
        }
    }
}
