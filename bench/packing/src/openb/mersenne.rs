//! Python's `random`, as far as the judge in Python uses it, so that both make the same lists. It is MT19937 (Matsumoto
//! and Nishimura, 1998), seeded by one number as in Python.

const STATE: usize = 624;

pub struct Mersenne {
    state: [u32; STATE],
    next: usize,
}

impl Mersenne {
    /// Seeds it as `random.Random(seed)` does.
    pub fn new(seed: u32) -> Self {
        let mut state = [19_650_218; STATE];
        for i in 1..STATE {
            state[i] = mixed(state[i - 1]).wrapping_mul(1_812_433_253).wrapping_add(index(i));
        }
        // Python seeds with `init_by_array`, here with a key of one word.
        let mut at = 1;
        for _ in 0..STATE {
            state[at] = (state[at] ^ mixed(state[at - 1]).wrapping_mul(1_664_525)).wrapping_add(seed);
            at = following(&mut state, at);
        }
        for _ in 1..STATE {
            state[at] =
                (state[at] ^ mixed(state[at - 1]).wrapping_mul(1_566_083_941)).wrapping_sub(index(at));
            at = following(&mut state, at);
        }
        state[0] = 0x8000_0000;
        Self { state, next: STATE }
    }

    fn word(&mut self) -> u32 {
        if self.next == STATE {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..STATE {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % STATE] & 0x7fff_ffff);
            let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[i] = self.state[(i + 397) % STATE] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }

    /// From 0 to below `bound`, which is not 0: as `random._randbelow`.
    fn below(&mut self, bound: usize) -> usize {
        let bound = u32::try_from(bound).unwrap_or(u32::MAX);
        let bits = u32::BITS - bound.leading_zeros();
        loop {
            let draw = self.word() >> (u32::BITS - bits);
            if draw < bound {
                return usize::try_from(draw).unwrap_or(usize::MAX);
            }
        }
    }

    /// Shuffles as `random.shuffle` does.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last + 1);
            items.swap(last, other);
        }
    }

    /// Draws as `random.choice` does; `None` if there are no items.
    pub fn choice<'t, T>(&mut self, items: &'t [T]) -> Option<&'t T> {
        if items.is_empty() { None } else { items.get(self.below(items.len())) }
    }
}

fn mixed(word: u32) -> u32 {
    word ^ (word >> 30)
}

fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

fn following(state: &mut [u32; STATE], at: usize) -> usize {
    if at + 1 < STATE {
        return at + 1;
    }
    state[0] = state[STATE - 1];
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_shuffles_and_draws_as_python_does() {
        // Python printed the expected numbers: r = random.Random(42); x = list(range(10)); r.shuffle(x); x;
        // [r.choice(x) for _ in range(5)]
        let mut random = Mersenne::new(42);
        let mut items: Vec<usize> = (0..10).collect();
        random.shuffle(&mut items);
        assert_eq!(items, [7, 3, 2, 8, 5, 6, 9, 4, 0, 1]);
        let drawn: Vec<usize> = (0..5).filter_map(|_| random.choice(&items).copied()).collect();
        assert_eq!(drawn, [1, 9, 7, 7, 3]);
    }
}
