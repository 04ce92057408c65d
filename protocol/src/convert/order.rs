//! Converts orders and their answers.

use super::slice::{read_shape, write_shape};
use super::{Unreadable, cut, each, name, names, parsed, present, text};
use crate::limits::PLACES;
use crate::wire;
use kerf_core::ledger::{Answer, Done, Order, OrderKind, Owner, Proposal, Rejection};
use kerf_core::names::{GpuUuid, PodKey, PodUid, SliceId};
use kerf_core::packing::{Placed, Source};
use std::time::Duration;
use wire::Reason;
use wire::order::Order as Kind;

pub fn read_order(order: wire::Order) -> Result<Order, Unreadable> {
    let kind = match present("order", order.order)? {
        Kind::Reserve(reserve) => {
            read_reserve(reserve).map(OrderKind::Reserve).map_err(|r| r.within("reserve"))?
        }
        Kind::Mark(wire::Mark { uid, attempt }) => OrderKind::Mark { uid: pod("mark.uid", uid)?, attempt },
        Kind::Outcome(wire::Outcome { uid, attempt, bound }) => {
            OrderKind::Outcome { uid: pod("outcome.uid", uid)?, attempt, bound }
        }
        Kind::Release(wire::Release { uid, why }) => {
            OrderKind::Release { uid: pod("release.uid", uid)?, why: text("release.why", why)? }
        }
    };
    Ok(Order { epoch: order.epoch, kind })
}

fn pod(field: &str, uid: String) -> Result<PodUid, Unreadable> {
    name(field, uid).map(PodUid::new)
}

#[must_use]
pub fn write_order(number: u64, order: &Order) -> wire::Order {
    let kind = match &order.kind {
        OrderKind::Reserve(proposal) => Kind::Reserve(write_reserve(proposal)),
        OrderKind::Mark { uid, attempt } => {
            Kind::Mark(wire::Mark { uid: uid.to_string(), attempt: *attempt })
        }
        OrderKind::Outcome { uid, attempt, bound } => {
            Kind::Outcome(wire::Outcome { uid: uid.to_string(), attempt: *attempt, bound: *bound })
        }
        OrderKind::Release { uid, why } => {
            Kind::Release(wire::Release { uid: uid.to_string(), why: cut(why) })
        }
    };
    wire::Order { number, epoch: order.epoch, order: Some(kind) }
}

fn read_reserve(reserve: wire::Reserve) -> Result<Proposal, Unreadable> {
    let key = PodKey::new(name("namespace", reserve.namespace)?, name("pod", reserve.pod)?);
    Ok(Proposal {
        owner: Owner { uid: pod("uid", reserve.uid)?, key },
        places: each("places", reserve.places, PLACES, read_place)?,
    })
}

fn write_reserve(proposal: &Proposal) -> wire::Reserve {
    let Proposal { owner: Owner { uid, key }, places } = proposal;
    wire::Reserve {
        uid: uid.to_string(),
        namespace: key.namespace.clone(),
        pod: key.name.clone(),
        places: places.iter().map(write_place).collect(),
    }
}

fn read_place(place: wire::Place) -> Result<Placed, Unreadable> {
    use wire::place::Source as From;
    Ok(Placed {
        container: name("container", place.container)?,
        resource: parsed("resource", place.resource)?,
        alone: place.alone,
        gpu: GpuUuid::new(name("gpu", place.gpu)?),
        shape: read_shape(place.shape)?,
        source: match present("source", place.source)? {
            From::Idle(id) => Source::Idle(SliceId::new(name("idle", id)?)),
            From::Cut(wire::Cut { destroys }) => {
                Source::Cut(names("cut.destroys", destroys, PLACES)?.into_iter().map(SliceId::new).collect())
            }
        },
    })
}

fn write_place(place: &Placed) -> wire::Place {
    use wire::place::Source as From;
    wire::Place {
        container: place.container.clone(),
        resource: place.resource.into(),
        alone: place.alone,
        gpu: place.gpu.to_string(),
        shape: Some(write_shape(place.shape)),
        source: Some(match &place.source {
            Source::Idle(id) => From::Idle(id.to_string()),
            Source::Cut(destroys) => {
                From::Cut(wire::Cut { destroys: destroys.iter().map(ToString::to_string).collect() })
            }
        }),
    }
}

/// Parses an answer and the number of its order. A refusal for an unknown reason counts as unreadable, so that a newer
/// agent's connection stays open.
pub fn read_answer(answer: wire::Answer) -> Result<(u64, Answer), Unreadable> {
    use wire::answer::Answer as Kind;
    let read = match present("answer.answer", answer.answer)? {
        Kind::Done(done) => Ok(Done { lifetime: Duration::from_millis(done.lifetime_ms) }),
        Kind::Refused(refused) => Err(read_rejection(refused)?),
    };
    Ok((answer.number, read))
}

#[must_use]
pub fn write_answer(number: u64, answer: &Answer) -> wire::Answer {
    use wire::answer::Answer as Kind;
    let kind = match answer {
        Ok(Done { lifetime }) => {
            Kind::Done(wire::Done { lifetime_ms: u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX) })
        }
        Err(rejection) => Kind::Refused(write_rejection(rejection)),
    };
    wire::Answer { number, answer: Some(kind) }
}

fn read_rejection(refused: wire::Refused) -> Result<Rejection, Unreadable> {
    let text = text("answer.refused.text", refused.text)?;
    Ok(match Reason::try_from(refused.reason) {
        Ok(Reason::OldEpoch) => Rejection::OldEpoch,
        Ok(Reason::Closed) => Rejection::Closed(text),
        Ok(Reason::Taken) => Rejection::Taken(text),
        Ok(Reason::Disk) => Rejection::Disk(text),
        Ok(Reason::UnknownReservation) => Rejection::UnknownReservation,
        Ok(Reason::NotReady) => Rejection::NotReady,
        Ok(Reason::BindingOpen) => Rejection::BindingOpen,
        Ok(Reason::Unreadable) => Rejection::Unreadable(text),
        Ok(Reason::Limit) => Rejection::Limit(text),
        Ok(Reason::Unspecified) | Err(_) => Rejection::Unreadable(format!(
            "answer.refused.reason has the unknown value {}: {text}",
            refused.reason
        )),
    })
}

fn write_rejection(rejection: &Rejection) -> wire::Refused {
    let reason = match rejection {
        Rejection::OldEpoch => Reason::OldEpoch,
        Rejection::Closed(_) => Reason::Closed,
        Rejection::Taken(_) => Reason::Taken,
        Rejection::Disk(_) => Reason::Disk,
        Rejection::UnknownReservation => Reason::UnknownReservation,
        Rejection::NotReady => Reason::NotReady,
        Rejection::BindingOpen => Reason::BindingOpen,
        Rejection::Unreadable(_) => Reason::Unreadable,
        Rejection::Limit(_) => Reason::Limit,
    };
    wire::Refused { reason: reason.into(), text: cut(&rejection.to_string()) }
}
