//! Labels: names of parts of a program, with the place in its source where they begin.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Mutex;

use dmr_core::process::PerProcess;
use dmr_core::sync::lock;
use dmr_core::{AllocTag, Process};

use crate::gate;
use crate::raw::{Kind, Raw};
use crate::thread::{current_label, push, replace_label};

/// A label, and where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Label {
    pub(crate) name: AllocTag,
    pub(crate) site: &'static Location<'static>,
}

/// The most different labels of a process; later ones are recorded without label.
const MOST: usize = u16::MAX as usize;

#[derive(Default)]
struct Labels {
    ids: HashMap<Label, u16>,
    by_id: Vec<Label>,
}

static LABELS: PerProcess<Mutex<Labels>> = PerProcess::new(Mutex::default);

/// A part of the program: events of this thread have its label and place until it is dropped.
///
/// Scopes nest: drop them in the reverse order, as the end of a block of code does.
#[derive(Debug)]
#[must_use = "the label ends where this is dropped"]
pub struct LabelScope {
    /// `None` if nothing was recorded when it began.
    previous: Option<u16>,
    /// The process in which it began: in a forked child, labels have other numbers.
    process: Process,
    /// The scope stays on the thread that entered it.
    not_send: PhantomData<*const ()>,
}

/// Gives the events of this thread a label, and the place of this call, until the scope is dropped.
///
/// If nothing is recorded, this does nothing. Otherwise it takes a lock: label steps, not kernels.
#[track_caller]
pub fn label(name: &str) -> LabelScope {
    // Not in the closure, whose caller is in this function.
    let site = Location::caller();
    let previous = gate::is_on().then(|| enter(name, site));
    LabelScope { previous, process: Process::current(), not_send: PhantomData }
}

fn enter(name: &str, site: &'static Location<'static>) -> u16 {
    let label = Label { name: AllocTag::intern(name), site };
    let mut labels = lock(LABELS.get());
    let id = match labels.ids.get(&label) {
        Some(id) => *id,
        None if labels.by_id.len() == MOST => 0,
        None => {
            labels.by_id.push(label);
            let id = labels.by_id.len() as u16;
            labels.ids.insert(label, id);
            id
        }
    };
    drop(labels);
    let previous = replace_label(id);
    push(Raw::new(Kind::LabelBegin, 0, 0, 0, 0));
    previous
}

impl Drop for LabelScope {
    fn drop(&mut self) {
        let Some(previous) = self.previous.filter(|_| self.process.is_current()) else { return };
        replace_label(previous);
        if gate::is_on() {
            push(Raw::new(Kind::LabelEnd, 0, 0, 0, 0));
        }
    }
}

/// Returns all labels, by their number less one.
pub(crate) fn labels() -> Vec<Label> {
    lock(LABELS.get()).by_id.clone()
}

/// Returns the number of the label that the thread is in; 0 for none.
pub(crate) fn current() -> u16 {
    current_label()
}
