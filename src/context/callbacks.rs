//! Callbacks: functions of the program that are called when a request's call or a buffer's operation has ended.
//!
//! They are the entries of a queue of the device, which the threads of a pool take. A thread has no lock and keeps no
//! object alive while it is in a callback, so that this may destroy all of them.

use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use crate::context::Context;
use crate::context::queued::{Callback, Completion, Queue, Queued};
use crate::context::request::{HasRequest, SET_CALLBACK};
use crate::context::unbound_buffer::UnboundBuffer;
use crate::engine::Waker;
use crate::engine::completion_queue::{Pool, Work};
use crate::engine::ready::OnTime;
use crate::error::{Error, ErrorKind, Result};
use crate::sys::{self, ForkMark};

/// The contexts whose calls have both a callback and a reduction function of the caller.
type Functions = Arc<Mutex<Vec<Weak<Context>>>>;

/// The pool of a device, and its queue.
pub struct Callbacks {
    // What a child by fork has of it is not dropped: other threads of the parent may have been changing it.
    own: ManuallyDrop<Own>,
    mark: Arc<ForkMark>,
}

struct Own {
    pool: Arc<Pool<Arc<dyn Queued>, Context>>,
    threads: Threads,
    functions: Functions,
}

type Threads = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// What the threads do.
struct Calls {
    threads: Threads,
    functions: Functions,
    mark: Arc<ForkMark>,
}

/// Has the pool call the functions of calls on a context.
pub struct FunctionsOf {
    context: Arc<Context>,
    functions: Functions,
    bell: Arc<Waker>,
}

/// Calls `callback` at the end of each call of the request that `own` has, of the one in progress included. The ends are
/// reported in no other way from then on.
pub fn call_back_request(own: Arc<dyn HasRequest>, callback: Callback) -> Result<()> {
    let request = own.request();
    request.check_thread(SET_CALLBACK)?;
    let context = request.context().clone();
    let callbacks = Callbacks::of(&context)?;
    let queue = callbacks.own.pool.queue();
    let on_time: Arc<dyn OnTime> = queue.clone();
    context.engine().will_remind(&on_time);
    let functions = request.has_function().then(|| Box::new(callbacks.functions_of(&context)) as _);
    request.call_back(own.clone(), queue, callback, functions)
}

/// Calls `callback` at the end of each operation of a buffer, of those included that no wait has reported.
pub fn call_back_buffer(buffer: &UnboundBuffer, callback: Callback) -> Result<()> {
    let context = buffer.context();
    context.check_process()?;
    buffer.call_back(Callbacks::of(context)?.own.pool.queue(), callback)
}

impl Callbacks {
    /// Those of a context's device. The first call starts their first thread.
    fn of(context: &Context) -> Result<Arc<Self>> {
        let place = context.device().layer_data().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the contexts of this device have no callbacks: it has no threads")
        })?;
        let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
        let present = place.clone().and_then(|data| data.downcast::<Self>().ok());
        match present {
            Some(present) => Ok(present),
            None => {
                let new =
                    Self::start(context).map_err(|error| Error::io("cannot start a thread for callbacks", &error))?;
                Ok(place.insert(Arc::new(new)).clone().downcast().expect("made here"))
            }
        }
    }

    fn start(context: &Context) -> io::Result<Self> {
        Self::by(context, |calls| Box::new(calls))
    }

    /// Those whose threads do what `work` makes of their work.
    fn by(context: &Context, work: impl FnOnce(Calls) -> Box<dyn Work<Arc<dyn Queued>, Context>>) -> io::Result<Self> {
        let (threads, functions, mark) = (Threads::default(), Functions::default(), Arc::new(ForkMark::new()?));
        let calls = Calls { threads: threads.clone(), functions: functions.clone(), mark: mark.clone() };
        let pool = Pool::start(context.device().clock(), work(calls))?;
        Ok(Self { own: ManuallyDrop::new(Own { pool, threads, functions }), mark })
    }

    fn functions_of(&self, context: &Arc<Context>) -> FunctionsOf {
        let own = FunctionsOf {
            context: context.clone(),
            functions: self.own.functions.clone(),
            bell: self.own.pool.bell().clone(),
        };
        let mut functions = own.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if !own.is_in(&functions) {
            context.engine().listen(&own.bell);
        }
        functions.push(Arc::downgrade(context));
        drop(functions);
        // The call may have been started before.
        own.bell.wake();
        own
    }
}

/// The pool of the callbacks of the device of `context`, for tests: it has no threads but the caller, who runs it.
#[cfg(test)]
pub(crate) fn pool_without_threads(context: &Context) -> Arc<Pool<Arc<dyn Queued>, Context>> {
    struct Lone(Calls, std::sync::atomic::AtomicBool);

    impl Work<Arc<dyn Queued>, Context> for Lone {
        fn look(&self, queue: &Arc<Queue>, number: u32, source: Arc<dyn Queued>) -> bool {
            self.0.look(queue, number, source)
        }

        fn call_functions(&self) {
            self.0.call_functions();
        }

        fn start_thread(&self, _: &Arc<Pool<Arc<dyn Queued>, Context>>) -> io::Result<()> {
            match self.1.swap(true, std::sync::atomic::Ordering::Relaxed) {
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(()),
            }
        }
    }

    let callbacks = Callbacks::by(context, |calls| Box::new(Lone(calls, false.into()))).expect("a pool");
    let pool = callbacks.own.pool.clone();
    let place = context.device().layer_data().expect("a place for callbacks");
    *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(callbacks));
    pool
}

impl Drop for Callbacks {
    /// Does not wait for callbacks that run: one of them may have dropped the device, or wait for the thread that does.
    fn drop(&mut self) {
        if self.mark.is_child() {
            return;
        }
        // SAFETY: this is the only place where it is dropped, and it is not used afterwards.
        let own = unsafe { ManuallyDrop::take(&mut self.own) };
        let is_idle = own.pool.end();
        let threads = std::mem::take(&mut *own.threads.lock().unwrap_or_else(PoisonError::into_inner));
        if is_idle {
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}

impl Work<Arc<dyn Queued>, Context> for Calls {
    fn look(&self, queue: &Arc<Queue>, number: u32, source: Arc<dyn Queued>) -> bool {
        let Some(result) = source.end_in(queue, number) else { return true };
        let (kind, callback) = (source.kind(), source.callback().cloned());
        drop(source);
        if let Some(callback) = callback {
            callback(Completion { user: 0, kind, result });
        }
        // In a child by fork of the callback, the threads that have the locks are missing.
        !self.mark.is_child()
    }

    fn call_functions(&self) {
        let contexts = self.functions.lock().unwrap_or_else(PoisonError::into_inner).clone();
        contexts.iter().filter_map(Weak::upgrade).for_each(|context| context.engine().call_functions());
    }

    fn start_thread(&self, pool: &Arc<Pool<Arc<dyn Queued>, Context>>) -> io::Result<()> {
        let pool = pool.clone();
        let work = move || {
            sys::block_signals();
            pool.run();
        };
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, running) = std::mem::take(&mut *threads).into_iter().partition(JoinHandle::is_finished);
        *threads = running;
        threads.push(std::thread::Builder::new().name("gloo_rs-pool".into()).spawn(work)?);
        drop(threads);
        let ended: Vec<JoinHandle<()>> = ended;
        ended.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    }
}

impl FunctionsOf {
    fn position(&self, functions: &[Weak<Context>]) -> Option<usize> {
        functions.iter().position(|context| std::ptr::eq(context.as_ptr(), &*self.context))
    }

    fn is_in(&self, functions: &[Weak<Context>]) -> bool {
        self.position(functions).is_some()
    }
}

impl Drop for FunctionsOf {
    fn drop(&mut self) {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let own = self.position(&functions);
        own.into_iter().for_each(|own| drop(functions.swap_remove(own)));
        if !self.is_in(&functions) {
            self.context.engine().ignore(&self.bell);
        }
    }
}
