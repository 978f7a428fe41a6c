//! Requests as bytes, made before the load begins, and which of them is next.

#[derive(Default)]
pub struct Requests {
    bytes: Vec<u8>,
    made: Vec<Made>,
}

struct Made {
    end: usize,
    replies: usize,
}

/// A request, and how many replies it gets where a protocol sends several.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub bytes: &'a [u8],
    pub replies: usize,
}

/// What is asked: reads again and again, puts once each, or a put after so many reads.
pub struct Supply<'a> {
    reads: &'a Requests,
    puts: &'a Requests,
    reads_to_a_put: usize,
    asked: usize,
    read: usize,
    put: usize,
}

impl Requests {
    pub fn add(&mut self, replies: usize, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.made.push(Made { end: self.bytes.len(), replies });
    }

    pub fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    fn get(&self, index: usize) -> Option<Request<'_>> {
        let made = self.made.get(index)?;
        let begin = index.checked_sub(1).map_or(0, |before| self.made[before].end);
        Some(Request { bytes: &self.bytes[begin..made.end], replies: made.replies })
    }
}

impl<'a> Supply<'a> {
    /// One of the two may be empty.
    pub fn new(reads: &'a Requests, puts: &'a Requests, reads_to_a_put: usize) -> Supply<'a> {
        Supply { reads, puts, reads_to_a_put, asked: 0, read: 0, put: 0 }
    }

    /// `None` when all puts were asked.
    pub fn next(&mut self) -> Option<Request<'a>> {
        self.asked += 1;
        let is_put = self.reads.is_empty()
            || !self.puts.is_empty() && self.asked.is_multiple_of(self.reads_to_a_put + 1);
        if is_put {
            self.put += 1;
            return self.puts.get(self.put - 1);
        }
        let next = self.reads.get(self.read).or_else(|| self.reads.get(0));
        self.read = if self.read + 1 < self.reads.made.len() { self.read + 1 } else { 0 };
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(texts: &[&str]) -> Requests {
        let mut requests = Requests::default();
        for text in texts {
            requests.add(1, |bytes| bytes.extend_from_slice(text.as_bytes()));
        }
        requests
    }

    fn taken(reads: &[&str], puts: &[&str], count: usize) -> String {
        let (reads, puts) = (requests(reads), requests(puts));
        let mut supply = Supply::new(&reads, &puts, 3);
        let next = (0..count).map_while(|_| supply.next());
        next.map(|request| String::from_utf8_lossy(request.bytes).into_owned()).collect()
    }

    #[test]
    fn reads_come_again_and_puts_do_not() {
        assert_eq!(taken(&["a", "b"], &[], 5), "ababa");
        assert_eq!(taken(&[], &["X", "Y"], 5), "XY");
        assert_eq!(taken(&["a", "b"], &["X", "Y"], 12), "abaXbabY aba".replace(' ', ""));
        assert_eq!(taken(&["a"], &["X"], 12), "aaaXaaa");
    }
}
