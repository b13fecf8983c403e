//! Contexts: which thread has which.
//!
//! An `mctx_t` is the address of a small block that is never freed, and not looked into before it was found among all those
//! blocks: a number that means one context, for ever. So one that was destroyed or made up is told from one that lives, without
//! a lock: signal handlers ask too, and children of fork(2), to which nobody would give it back.

use core::ffi::c_int;
use core::ptr;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use capi::{Errno, Result, errno};
use client::Interrupts;
use runtime::{App, forks};
use socket::{Ready, Sockets};

use crate::ids::{Entry, Ids, Kind};
use crate::process::{self, Lease, Ticket};
use crate::signals::Wake;

/// What `struct mtcp_context` is: programs that were written against mTCP's own headers may look at `cpu`.
#[repr(C)]
pub struct Token {
    cpu: c_int,
    alive: AtomicBool,
    /// The one made before it, of all threads.
    before: Option<&'static Token>,
}

/// The block made last, behind which all others are. In a child of fork(2) the parent's contexts live too, which it cannot use.
static LAST: AtomicPtr<Token> = AtomicPtr::new(ptr::null_mut());

impl Token {
    /// A new one, among the others.
    fn new(cpu: c_int) -> &'static Token {
        let token = Box::leak(Box::new(Token { cpu, alive: AtomicBool::new(true), before: None }));
        let mut last = LAST.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a block that another call of this function has leaked and finished.
            token.before = unsafe { last.as_ref() };
            match LAST.compare_exchange_weak(last, token, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return token,
                Err(now) => last = now,
            }
        }
    }

    /// Whether a number means a context that lives, of whatever thread.
    fn is_alive(mctx: *mut Token) -> bool {
        // SAFETY: null, or a block that `new` has leaked and finished.
        let last = unsafe { LAST.load(Ordering::Acquire).as_ref() };
        let mut all = core::iter::successors(last, |token| token.before);
        all.find(|token| ptr::eq(*token, mctx)).is_some_and(|token| token.alive.load(Ordering::Acquire))
    }
}

/// Source addresses that `mtcp_init_rss` has set for connections that are bound to none.
pub struct Sources {
    pub first: Ipv4Addr,
    pub count: u32,
    pub next: u32,
}

/// A thread's end of a lane, with its ids.
pub struct Context {
    /// Taken when the context ends.
    app: Option<App>,
    ticket: Ticket,
    pub ids: Ids,
    /// Sockets ask silent peers whether they are there.
    pub keepalive: bool,
    pub sources: Option<Sources>,
    /// Room for what an epoll reports.
    pub ready: Vec<Ready>,
    /// Room for what `mtcp_sendfile` reads.
    pub file: Vec<u8>,
}

/// What ends the waits of a context: registered handlers, and the end of its engine.
struct Interrupt {
    wake: Wake,
    ticket: Ticket,
}

impl Interrupts for Interrupt {
    fn is_due(&self) -> bool {
        self.wake.is_due()
    }

    fn take(&mut self) -> bool {
        self.wake.take()
    }

    fn is_over(&self) -> bool {
        self.ticket.is_over()
    }
}

struct Mine {
    token: &'static Token,
    /// The process that made it, in which alone it ends.
    forks: u32,
    context: ManuallyDrop<RefCell<Context>>,
}

thread_local! {
    /// The contexts of this thread, hardly ever more than one.
    static MINE: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) };
}

/// Makes a context of this thread.
pub fn create(cpu: c_int) -> Result<*mut Token> {
    insert(cpu, process::lease(cpu)?)
}

/// Makes a context of this thread over a lane that the process has got itself, without `mtcp_init`.
pub fn adopt(app: App) -> std::io::Result<*mut Token> {
    insert(0, process::own(app)).map_err(Into::into)
}

fn insert(cpu: c_int, lease: Lease) -> Result<*mut Token> {
    let Lease { mut app, max_ids, late_ids, keepalive, ticket } = lease;
    let waker = app.waker(Arc::default());
    let wake = match Wake::new(waker) {
        Ok(wake) => wake,
        Err(e) => {
            process::give_back(app, ticket);
            return Err(e);
        }
    };
    app.interrupt_by(Box::new(Interrupt { wake, ticket }));
    let context = Context {
        app: Some(app),
        ticket,
        ids: Ids::new(max_ids, late_ids),
        keepalive,
        sources: None,
        ready: Vec::new(),
        file: Vec::new(),
    };
    let token = Token::new(cpu);
    let context = ManuallyDrop::new(RefCell::new(context));
    let mine = Mine { token, forks: forks::watch(), context };
    // Where a signal handler came into a call of this thread, or the thread is ending, the context goes again.
    MINE.try_with(|all| all.try_borrow_mut().map(|mut all| all.push(mine)).map_err(|_| Errno::BUSY))
        .unwrap_or(Err(Errno::BUSY))?;
    Ok(ptr::from_ref(token).cast_mut())
}

/// Ends a context of this thread: what is open on it is closed.
pub fn destroy(mctx: *mut Token) -> Result<()> {
    let mine = MINE
        .try_with(|all| {
            let mut all = all.try_borrow_mut().map_err(|_| Errno::BUSY)?;
            let at = all.iter().position(|m| m.is(mctx)).ok_or_else(|| stranger(mctx))?;
            Ok(all.swap_remove(at))
        })
        .unwrap_or(Err(Errno::INVAL))?;
    drop(mine);
    Ok(())
}

/// `mtcp_destroy`: ends the contexts of this process, those of other threads with their next call, and the engine, which waits for what is
/// in flight.
pub fn destroy_all() -> Result<()> {
    let running = process::take_running()?;
    end_own();
    if let Some(running) = running {
        running.end();
    }
    Ok(())
}

/// Ends the contexts of this thread whose engine ends: but for one in whose call a signal handler does so, which ends later.
fn end_own() {
    // A thread that ends has none any more.
    let _ = MINE.try_with(|all| {
        let Ok(mut all) = all.try_borrow_mut() else { return };
        all.retain(|mine| !mine.context.try_borrow().is_ok_and(|context| context.ticket.is_over()));
    });
}

impl Mine {
    /// Whether it is what this number means, and this process's.
    #[inline]
    fn is(&self, mctx: *mut Token) -> bool {
        ptr::eq(self.token, mctx) && self.forks == forks::count()
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        // What a parent made is the parent's to end.
        if self.forks != forks::count() {
            return;
        }
        self.token.alive.store(false, Ordering::Release);
        // SAFETY: it is dropped here alone.
        unsafe { ManuallyDrop::drop(&mut self.context) };
    }
}

/// Why a number means no context of this thread: `EPERM` where it is another thread's or the parent's, `EINVAL` where it is
/// nobody's.
#[cold]
fn stranger(mctx: *mut Token) -> Errno {
    if Token::is_alive(mctx) { Errno::PERM } else { Errno::INVAL }
}

/// Calls `f` with a context of this thread: `EPERM` where it is another thread's or the parent's, `EINVAL` where there is none of this number,
/// `EBUSY` inside another call on it (a signal handler's).
#[inline]
pub fn with<T>(mctx: *mut Token, f: impl FnOnce(&mut Context) -> Result<T>) -> Result<T> {
    MINE.try_with(|all| {
        let all = all.try_borrow().map_err(|_| Errno::BUSY)?;
        let mine = all.iter().find(|m| m.is(mctx)).ok_or_else(|| stranger(mctx))?;
        let mut context = mine.context.try_borrow_mut().map_err(|_| Errno::BUSY)?;
        if context.ticket.is_over() {
            context.end();
            return Err(Errno::INVAL);
        }
        let result = f(&mut context);
        // The program may do other things now, for long.
        if let Some(app) = &mut context.app {
            app.leave();
        }
        result
    })
    .unwrap_or(Err(Errno::INVAL))
}

impl Context {
    /// The lane; there as long as the context is.
    #[inline]
    pub fn app(&mut self) -> Result<&mut App> {
        self.app.as_mut().ok_or(Errno::INVAL)
    }

    /// The lane's sockets.
    #[inline]
    pub fn sockets(&mut self) -> Result<&mut Sockets> {
        Ok(&mut self.app()?.sockets)
    }

    /// A call that does not wait.
    #[inline]
    pub fn call<T>(&mut self, f: impl FnOnce(&mut Sockets) -> core::result::Result<T, socket::Errno>) -> Result<T> {
        f(self.sockets()?).map_err(errno::of)
    }

    /// A call that may wait.
    #[inline]
    pub fn enter<T>(&mut self, f: impl FnOnce(&mut App) -> core::result::Result<T, socket::Errno>) -> Result<T> {
        f(self.app()?).map_err(errno::of)
    }

    /// Something was asked for on a socket. Where it blocks, nothing waits for the program's next call.
    pub fn asked(&mut self, nonblocking: bool) {
        if let Some(app) = &mut self.app {
            app.asked(nonblocking);
        }
    }

    /// Hears what the lane has to say, for who only ever asks. Whether it was heard.
    pub fn hear(&mut self) -> Result<bool> {
        Ok(self.app()?.hear())
    }

    /// Closes what an id stood for, without waiting.
    pub fn close_entry(&mut self, entry: Entry) -> Result<()> {
        match entry.kind {
            Kind::Stream => {
                self.sockets()?.close_behind(entry.sock);
                Ok(())
            }
            Kind::Listener { claim } => {
                // First the kernel may have what opens connections, so that no SYN arrives for a listener that is gone.
                drop(claim);
                self.call(|s| s.close(entry.sock))
            }
            Kind::Pipe | Kind::Epoll => self.call(|s| s.close(entry.sock)),
        }
    }
}

impl Context {
    /// Closes what is open, and gives the lane back; calls find no context then.
    fn end(&mut self) {
        let open: Vec<Entry> = self.ids.drain().collect();
        if let Some(app) = &mut self.app {
            app.sockets.ending();
        }
        for entry in open {
            // Nothing but the table's own bookkeeping can object, and it has nothing left to lose.
            let _ = self.close_entry(entry);
        }
        if let Some(mut app) = self.app.take() {
            app.hand_over_all();
            process::give_back(app, self.ticket);
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.end();
    }
}
