//! Compares the fixed point with a simulation: inferences arrive at random, each tenant runs one at a time and queues
//! the rest, and each running inference is slowed down by the pressure of the others.

use super::predict::crowded;
use super::*;
use crate::testing::Random;

/// A tenant of the simulation.
struct Pod {
    workload: Workload,
    next: f64,
    queued: u32,
    /// The seconds of work left in the running inference, and its start.
    running: Option<(f64, f64)>,
    took: f64,
    ended: f64,
}

/// A number between 0 and 1.
fn part(random: &mut Random) -> f64 {
    (f64::from(random.draw()) + 0.5) / 4_294_967_296.0
}

/// A gap between arrivals that keeps the tenant busy for its duty while it is alone.
fn gap(random: &mut Random, workload: &Workload) -> f64 {
    -part(random).ln() * workload.alone().seconds() / workload.duty().get()
}

/// The speed of a running inference of `pods[index]`: 1 while it is alone.
fn speed(pods: &[Pod], index: usize) -> f64 {
    let others = pods.iter().enumerate().filter(|(n, pod)| *n != index && pod.running.is_some());
    let pressures: Vec<f64> = others.map(|(_, pod)| pod.workload.pressure().get()).collect();
    let busy = u32::try_from(pressures.len()).unwrap();
    1.0 / crowded(f64::from(busy), pressures.iter().sum())
}

/// Advances to the next arrival or end of an inference, and returns the new time.
fn step(pods: &mut [Pod], now: f64, random: &mut Random) -> f64 {
    let speeds: Vec<f64> = (0..pods.len()).map(|n| speed(pods, n)).collect();
    let end = |(pod, speed): (&Pod, &f64)| pod.running.map_or(f64::MAX, |(left, _)| now + left / speed);
    let ends = pods.iter().zip(&speeds).map(end);
    let then = ends.chain(pods.iter().map(|pod| pod.next)).fold(f64::MAX, f64::min);
    for (pod, speed) in pods.iter_mut().zip(&speeds) {
        if let Some((left, began)) = pod.running {
            let left = left - (then - now) * speed;
            pod.running = Some((left, began));
            // A smaller remainder would vanish in the addition to the time, which would then stand still.
            if left <= 1e-9 {
                (pod.took, pod.ended) = (pod.took + then - began, pod.ended + 1.0);
                pod.running = (pod.queued > 0).then_some((pod.workload.alone().seconds(), then));
                pod.queued = pod.queued.saturating_sub(1);
            }
        }
        if pod.next <= then {
            pod.next = then + gap(random, &pod.workload);
            match pod.running {
                Some(_) => pod.queued += 1,
                None => pod.running = Some((pod.workload.alone().seconds(), then)),
            }
        }
    }
    then
}

/// The mean latency of each tenant over so many seconds.
fn simulated(workloads: &[Workload], seconds: f64) -> Vec<f64> {
    let mut random = Random::new(1);
    let pod = |workload: &Workload| Pod {
        workload: *workload,
        next: gap(&mut random, workload),
        queued: 0,
        running: None,
        took: 0.0,
        ended: 0.0,
    };
    let mut pods: Vec<Pod> = workloads.iter().map(pod).collect();
    let mut now = 0.0;
    while now < seconds {
        now = step(&mut pods, now, &mut random);
    }
    pods.iter().map(|pod| pod.took / pod.ended).collect()
}

fn workload(alone: f64, need: f64, duty: f64) -> Workload {
    let need = Need::new(need).unwrap();
    Workload::new(Latency::from_seconds(alone).unwrap(), need, need).with_duty(Duty::new(duty).unwrap())
}

/// Equal and unequal tenants, up to the admitted load: at most 5 % below and 20 % above, as for closed loops.
#[test]
fn open_loops_are_predicted_within_the_bar() {
    let alike = |count, need, duty| vec![workload(1.0, need, duty); count];
    let unlike = vec![
        workload(1.0, 0.5, 0.3),
        workload(0.2, 0.9, 0.2),
        workload(0.5, 0.2, 0.6),
        workload(2.0, 0.35, 0.1),
        workload(0.1, 0.6, 0.05),
    ];
    for (workloads, sharing) in [
        (alike(5, 0.5, 0.065), "seldom busy"),
        (alike(20, 0.52, 0.065), "many"),
        (alike(4, 0.52, 0.3), "often busy"),
        (alike(7, 0.36, 0.27), "as much as is admitted"),
        (unlike, "unlike"),
    ] {
        assert_eq!(admits(crate::packing::fraction::Sharing::Mps, &workloads), Ok(()), "{sharing}");
        let tenant = |workload: &Workload| Tenant { workload: *workload, technology: Technology::MPS };
        let predicted = predict(&workloads.iter().map(tenant).collect::<Vec<_>>());
        for (predicted, simulated) in predicted.iter().zip(simulated(&workloads, 20_000.0)) {
            let error = predicted.mean.seconds() / simulated - 1.0;
            assert!((-0.05..0.2).contains(&error), "{sharing}: {:.1} %", 100.0 * error);
        }
    }
}
