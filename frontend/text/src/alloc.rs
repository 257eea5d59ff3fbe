//! Counts what this library holds, so that a tokenizer can say how much memory its tables take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // A thread that is ending has no counter any more; nothing is measured there.
    let _ = HELD.try_with(|held| held.set(held.get() + bytes));
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        System.alloc(layout)
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        System.dealloc(ptr, layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        System.alloc_zeroed(layout)
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size as isize - layout.size() as isize);
        System.realloc(ptr, layout, new_size)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that this thread has taken and not given back; only differences mean something.
pub fn held() -> isize {
    HELD.with(|held| held.get())
}

/// Counts here what another thread has taken on behalf of this one.
pub fn adopt(bytes: isize) {
    add(bytes);
}
