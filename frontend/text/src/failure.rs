//! What goes wrong, and the guard that turns a panic of a library below into an ordinary error.

use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

/// Numbers are part of the C interface (`xjit_text_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Kind {
    /// The input is not what it should be.
    Invalid = 1,
    /// The template called `raise_exception`; the message is the template's.
    Raised = 2,
    /// The template is not valid, or uses what is not defined.
    Template = 3,
    /// Rendering failed: a type error, too many steps.
    Render = 4,
    /// A panic below.
    Internal = 5,
    /// The machine has no thread to give: `Internal` in the C interface, but no fault of a file that is being read.
    NoThread = 6,
}

impl Kind {
    pub fn status(self) -> i32 {
        match self {
            Kind::NoThread => Kind::Internal as i32,
            kind => kind as i32,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: Kind,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

pub fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Failure { kind: Kind::Invalid, message: message.into() })
}

thread_local! {
    static GUARDS: Cell<u32> = const { Cell::new(0) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}
static HOOK: Once = Once::new();

/// Runs `f`; a panic in it becomes a failure, and nothing is printed.
pub fn guard<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if GUARDS.with(Cell::get) == 0 {
                return previous(info);
            }
            let payload = info.payload();
            let text = payload
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()))
                .unwrap_or_default();
            let place =
                info.location().map(|l| format!(" at {}:{}", l.file().rsplit('/').next().unwrap_or(""), l.line()));
            PANIC.with(|p| *p.borrow_mut() = text + &place.unwrap_or_default());
        }));
    });
    GUARDS.with(|g| g.set(g.get() + 1));
    let result = catch_unwind(AssertUnwindSafe(f));
    GUARDS.with(|g| g.set(g.get() - 1));
    result.unwrap_or_else(|_| {
        let message = PANIC.with(|p| std::mem::take(&mut *p.borrow_mut()));
        Err(Failure { kind: Kind::Internal, message: message.replace('\n', " ") })
    })
}
