//! Converts slices, their shapes and their reservations.

use super::{Unreadable, byte, cut, name, optional_name, parsed, present, text, unknown};
use crate::wire;
use kerf_core::contract::{Holder, MigPart, Shape, SliceReservation, SliceState, SliceStatus};
use kerf_core::ledger::SliceKey;
use kerf_core::mig::ComputeInstance;
use kerf_core::names::{DeviceId, GpuUuid, PodUid, SliceId};
use kerf_core::units::{ComputePercent, MemoryMib, SizeGb};
use wire::mig::Part;
use wire::shape::Shape as Cut;

pub(super) fn read_slice(slice: wire::Slice) -> Result<SliceStatus, Unreadable> {
    let key = name("key", slice.key)?;
    let read = SliceStatus {
        id: optional_name("id", slice.id)?.map(SliceId::new),
        gpu: GpuUuid::new(name("gpu", slice.gpu)?),
        shape: read_shape(slice.shape)?,
        state: read_state(slice.state)?,
        memory: MemoryMib(slice.memory_mib),
        device: optional_name("device", slice.device)?.map(DeviceId::new),
        resource: slice.resource.map(|resource| parsed("resource", resource)).transpose()?,
        ready_for: optional_name("ready_for", slice.ready_for)?.map(PodUid::new),
        holder: slice.holder.map(|holder| within("holder", read_holder(holder))).transpose()?,
        message: slice.message.map(|message| text("message", message)).transpose()?,
        reservation: slice.reservation.map(|r| within("reservation", read_reservation(r))).transpose()?,
        leaving: slice.leaving,
    };
    // Later changes name the slice by its key only. An agent with another rule for keys would be misunderstood.
    let own = SliceKey::from_slice(&read);
    if own.as_str() != key {
        return Err(Unreadable::broken("key", format!("is {key:?}; {:?} was expected", own.as_str())));
    }
    Ok(read)
}

pub(super) fn write_slice(slice: &SliceStatus) -> wire::Slice {
    wire::Slice {
        key: SliceKey::from_slice(slice).as_str().to_owned(),
        id: slice.id.as_ref().map(ToString::to_string),
        gpu: slice.gpu.to_string(),
        shape: Some(write_shape(slice.shape)),
        state: write_state(slice.state).into(),
        memory_mib: slice.memory.0,
        device: slice.device.as_ref().map(ToString::to_string),
        resource: slice.resource.map(String::from),
        ready_for: slice.ready_for.as_ref().map(ToString::to_string),
        holder: slice.holder.clone().map(write_container),
        message: slice.message.as_deref().map(cut),
        reservation: slice.reservation.as_ref().map(write_reservation),
        leaving: slice.leaving,
    }
}

fn within<T>(field: &str, read: Result<T, Unreadable>) -> Result<T, Unreadable> {
    read.map_err(|refusal| refusal.within(field))
}

fn read_state(state: i32) -> Result<SliceState, Unreadable> {
    Ok(match wire::SliceState::try_from(state) {
        Ok(wire::SliceState::Preparing) => SliceState::Preparing,
        Ok(wire::SliceState::Waiting) => SliceState::Waiting,
        Ok(wire::SliceState::Ready) => SliceState::Ready,
        Ok(wire::SliceState::Held) => SliceState::Held,
        Ok(wire::SliceState::Idle) => SliceState::Idle,
        Ok(wire::SliceState::Failed) => SliceState::Failed,
        Ok(wire::SliceState::Unspecified) | Err(_) => return unknown("state", state),
    })
}

fn write_state(state: SliceState) -> wire::SliceState {
    match state {
        SliceState::Preparing => wire::SliceState::Preparing,
        SliceState::Waiting => wire::SliceState::Waiting,
        SliceState::Ready => wire::SliceState::Ready,
        SliceState::Held => wire::SliceState::Held,
        SliceState::Idle => wire::SliceState::Idle,
        SliceState::Failed => wire::SliceState::Failed,
    }
}

/// A pod that the API server has not shown to the agent yet has no namespace, and its UID takes the place of its name.
fn read_holder(holder: wire::Container) -> Result<Holder, Unreadable> {
    if !holder.namespace.is_empty() {
        return read_container(holder);
    }
    Ok(Holder {
        namespace: String::new(),
        pod: name("pod", holder.pod)?,
        container: name("container", holder.container)?,
    })
}

fn read_container(container: wire::Container) -> Result<Holder, Unreadable> {
    Ok(Holder {
        namespace: name("namespace", container.namespace)?,
        pod: name("pod", container.pod)?,
        container: name("container", container.container)?,
    })
}

fn write_container(holder: Holder) -> wire::Container {
    let Holder { namespace, pod, container } = holder;
    wire::Container { namespace, pod, container }
}

fn read_reservation(reservation: wire::Reservation) -> Result<SliceReservation, Unreadable> {
    let container = within("container", read_container(present("container", reservation.container)?))?;
    let Holder { namespace, pod, container } = container;
    Ok(SliceReservation {
        uid: PodUid::new(name("uid", reservation.uid)?),
        namespace,
        pod,
        container,
        resource: parsed("resource", reservation.resource)?,
        alone: reservation.alone,
        binding: reservation.binding,
    })
}

fn write_reservation(reservation: &SliceReservation) -> wire::Reservation {
    let SliceReservation { uid, namespace, pod, container, resource, alone, binding } = reservation.clone();
    wire::Reservation {
        uid: uid.to_string(),
        container: Some(wire::Container { namespace, pod, container }),
        resource: resource.into(),
        alone,
        binding,
    }
}

pub(super) fn read_shape(shape: Option<wire::Shape>) -> Result<Shape, Unreadable> {
    let shape = present("shape", shape.and_then(|shape| shape.shape))?;
    within(
        "shape",
        match shape {
            Cut::Mig(mig) => within("mig", read_mig(mig)),
            Cut::Whole(whole) => Ok(Shape::Whole { size_gb: SizeGb(whole.size_gb) }),
            Cut::Mps(mps) => within("mps", read_mps(&mps)),
            Cut::TimeSlicing(slice) => Ok(Shape::TimeSlicing { size_gb: SizeGb(slice.size_gb) }),
        },
    )
}

fn read_mig(mig: wire::Mig) -> Result<Shape, Unreadable> {
    Ok(Shape::Mig {
        profile: parsed("profile", mig.profile)?,
        start: byte("start", mig.start)?,
        size: byte("size", mig.size)?,
        part: match mig.part {
            None => MigPart::Whole,
            Some(Part::Compute(part)) => MigPart::Compute(ComputeInstance {
                start: byte("compute.start", part.start)?,
                compute: byte("compute.compute", part.compute)?,
            }),
            Some(Part::Replica(replica)) => MigPart::Replica { replica: byte("replica", replica)? },
        },
    })
}

fn read_mps(mps: &wire::Mps) -> Result<Shape, Unreadable> {
    let percent = |percent: u32| {
        let refused = || Unreadable::broken("compute_percent", format!("is {percent}; 1 to 100 can be"));
        u8::try_from(percent).ok().and_then(ComputePercent::new).ok_or_else(refused)
    };
    Ok(Shape::Mps { size_gb: SizeGb(mps.size_gb), compute: mps.compute_percent.map(percent).transpose()? })
}

pub(super) fn write_shape(shape: Shape) -> wire::Shape {
    let shape = match shape {
        Shape::Mig { profile, start, size, part } => Cut::Mig(wire::Mig {
            profile: profile.to_string(),
            start: start.into(),
            size: size.into(),
            part: match part {
                MigPart::Whole => None,
                MigPart::Compute(ComputeInstance { start, compute }) => {
                    Some(Part::Compute(wire::ComputeInstance {
                        start: start.into(),
                        compute: compute.into(),
                    }))
                }
                MigPart::Replica { replica } => Some(Part::Replica(replica.into())),
            },
        }),
        Shape::Whole { size_gb } => Cut::Whole(wire::Whole { size_gb: size_gb.0 }),
        Shape::Mps { size_gb, compute } => Cut::Mps(wire::Mps {
            size_gb: size_gb.0,
            compute_percent: compute.map(|compute| compute.get().into()),
        }),
        Shape::TimeSlicing { size_gb } => Cut::TimeSlicing(wire::TimeSlicing { size_gb: size_gb.0 }),
    };
    wire::Shape { shape: Some(shape) }
}
