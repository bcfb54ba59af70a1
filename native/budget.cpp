#include "budget.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "checks.h"
#include "positions.h"

namespace thinwire {
namespace {

constexpr uint8_t CHOICES[NUM_CHOICES] = {0, 1, 2, 4, 8};
constexpr int64_t SENT_COST = 1, FILL = 64, COUNT_BYTES = 4;
enum Kind : uint8_t { NOTHING, BITMAP, POSITIONS };

int64_t bits_to_bytes(int64_t bits) { return (bits + 7) / 8; }

// From one choice of a row to another; steps stand in the order of rows, a row's own in the order of its hull.
struct Step {
    uint32_t key;
    uint32_t row;
    uint8_t before, after;
};

// What is taken so far, and whether more would fit.
struct Account {
    int64_t num_rows, size;
    std::array<int64_t, NUM_CHOICES> costs;
    int64_t num_sent = 0, payload = 0;

    bool fits(int64_t more_sent, int64_t more_payload) const {
        return sent_bytes(num_rows, num_sent + more_sent) + payload + more_payload <= size;
    }
    bool take(int64_t more_sent, int64_t more_payload) {
        if (!fits(more_sent, more_payload)) return false;
        num_sent += more_sent;
        payload += more_payload;
        return true;
    }
    int64_t grown(const Step& s) const { return costs[s.after] - costs[s.before]; }
    bool take(const Step& s) { return take(s.before == 0, grown(s)); }
};

void add_steps(const double* errors, double weight, uint32_t row, int now, const Account& account, uint32_t least,
               std::vector<Step>& steps) {
    double limit = std::numeric_limits<double>::infinity();
    auto compared = [&](int choice) { return choice ? account.costs[choice] + SENT_COST : 0; };
    while (true) {
        double best = 0.0;
        int target = 0;
        for (int choice = now + 1; choice < NUM_CHOICES; ++choice) {
            const double gain = errors[now] - errors[choice];
            if (!(gain > 0.0)) continue;
            const double rate = weight * gain / (double)(compared(choice) - compared(now));
            if (rate > 0.0 && rate >= best) best = rate, target = choice;
        }
        if (!target) return;
        limit = std::min(best, limit);
        const uint32_t key = price_of(limit);
        if (key < least) return;
        steps.push_back({key, row, (uint8_t)now, (uint8_t)target});
        now = target;
    }
}

// Takes steps by falling key, equal ones in their order, until one does not fit. Returns the key of that one and how
// many of its equals are taken; {0, all} where all are. No sorting: three counting passes, 11 bits of the key each.
struct Prefix {
    uint32_t key;
    int64_t equals;
};

Prefix take_prefix(const std::vector<Step>& steps, Account& account) {
    constexpr int DIGITS[3] = {11, 11, 10};
    uint32_t prefix = 0;
    int shift = 32;
    for (int digits : DIGITS) {
        const int above = shift;
        shift -= digits;
        std::vector<int64_t> payload(1 << digits), sent(1 << digits);
        const uint32_t mask = (1u << digits) - 1;
        for (const Step& s : steps) {
            if (above < 32 && s.key >> above != prefix) continue;
            const uint32_t bin = s.key >> shift & mask;
            payload[bin] += account.grown(s);
            sent[bin] += s.before == 0;
        }
        int bin = (1 << digits) - 1;
        while (bin >= 0 && account.take(sent[bin], payload[bin])) --bin;
        if (bin < 0) return {0, (int64_t)steps.size()};
        prefix = prefix << digits | (uint32_t)bin;
    }
    int64_t equals = 0;
    for (const Step& s : steps)
        if (s.key == prefix) {
            if (!account.take(s)) break;
            ++equals;
        }
    return {prefix, equals};
}

// Of the next steps after the prefix those that still fit.
void fill(const std::vector<Step>& steps, Prefix prefix, Account& account, uint8_t* choices) {
    // Nothing smaller can follow: a row's first step, or one from choice to choice.
    int64_t least = account.costs[1] - 2;  // a header may shrink by two bytes as a row is added to it
    for (int choice = 2; choice < NUM_CHOICES; ++choice)
        least = std::min(least, account.costs[choice] - account.costs[choice - 1]);
    if (!account.fits(0, least)) return;
    std::vector<size_t> rest;
    for (size_t i = 0; i < steps.size(); ++i)
        if (steps[i].key < prefix.key || (steps[i].key == prefix.key && --prefix.equals < 0)) rest.push_back(i);
    auto sooner = [&](size_t a, size_t b) {
        return steps[a].key != steps[b].key ? steps[a].key > steps[b].key : a < b;
    };
    const size_t count = std::min<size_t>(FILL, rest.size());
    std::nth_element(rest.begin(), rest.begin() + count, rest.end(), sooner);
    std::sort(rest.begin(), rest.begin() + count, sooner);
    std::vector<uint32_t> missed;
    for (size_t i = 0; i < count; ++i) {
        const Step& s = steps[rest[i]];
        // A row's later steps need this one.
        if (std::find(missed.begin(), missed.end(), s.row) != missed.end() || !account.take(s)) missed.push_back(s.row);
        else choices[s.row] = s.after;
    }
}

// Not all that must be sent fits: the largest `must` first, then the most gained.
void choose_forced(const Offers& offers, std::vector<int64_t>& forced, Account& account, uint8_t* choices) {
    const int64_t* must = offers.must;
    std::vector<uint32_t> keys(account.num_rows);
    for (int64_t row : forced) {
        const double gain = offers.of(row)[0] - offers.of(row)[1], weight = (double)offers.weights[row];
        keys[row] = price_of((gain > 0.0 ? gain : 0.0) * weight / (double)(account.costs[1] + SENT_COST));
    }
    auto sooner = [&](int64_t a, int64_t b) {
        if (must[a] != must[b]) return must[a] > must[b];
        return keys[a] != keys[b] ? keys[a] > keys[b] : a < b;
    };
    // Only those that may fit are sorted.
    const int64_t most = std::min<int64_t>((int64_t)forced.size(), account.size / account.costs[1] + 1);
    std::nth_element(forced.begin(), forced.begin() + most, forced.end(), sooner);
    std::sort(forced.begin(), forced.begin() + most, sooner);
    for (int64_t i = 0; i < most && account.take(1, account.costs[1]); ++i) choices[forced[i]] = 1;
}

}  // namespace

int64_t sent_bytes(int64_t num_rows, int64_t num_sent) {
    if (num_sent == 0) return 1;
    const int64_t positions = COUNT_BYTES + position_bytes(num_rows, num_sent);
    return 1 + std::min(bits_to_bytes(num_rows), positions) + bits_to_bytes(2 * num_sent);
}

uint32_t price_of(double rate) {
    uint64_t bits;
    memcpy(&bits, &rate, 8);
    return (uint32_t)(bits >> 32);
}

double rate_of(uint32_t price) {
    const uint64_t bits = (uint64_t)price << 32;
    double rate;
    memcpy(&rate, &bits, 8);
    return rate;
}

int64_t compared_bytes(int64_t width, int choice) { return choice ? row_bytes(width, CHOICES[choice]) + SENT_COST : 0; }

namespace {

// Counts by price, from the highest down: 16 bins an octave, 64 octaves, and what is below that is never reached.
class Prices {
  public:
    static constexpr uint32_t NUM_BINS = 1 << 10;
    explicit Prices(uint32_t highest) : top_(highest >> SHIFT) {}
    uint32_t bin(uint32_t key) const { return std::min(top_ - (key >> SHIFT), NUM_BINS); }
    uint32_t least_of(uint32_t bin) const { return bin < NUM_BINS && bin <= top_ ? (top_ - bin) << SHIFT : 0; }

  private:
    static constexpr int SHIFT = 16;
    uint32_t top_;
};

}  // namespace

uint32_t likely_price(const Offers& offers) {
    // What 2, 4 and 8 bits gain of the error at 1 bit, of a Gaussian row.
    constexpr double GAINS[NUM_CHOICES] = {0.0, 0.0, 0.675, 0.292, 0.033};
    std::array<int64_t, NUM_CHOICES> grown{};
    std::array<double, NUM_CHOICES> rates{};
    for (int choice = 1; choice < NUM_CHOICES; ++choice) {
        grown[choice] = row_bytes(offers.width, CHOICES[choice]);
        if (choice > 1) grown[choice] -= row_bytes(offers.width, CHOICES[choice - 1]);
        rates[choice] = choice > 1 ? GAINS[choice] / (double)grown[choice] : 1.0 / (double)(grown[1] + SENT_COST);
    }
    double highest = 0.0;
    for (int64_t row = 0; row < offers.num_rows; ++row)
        highest = std::max(highest, (double)offers.weights[row] * offers.of(row)[0]);
    const Prices prices(price_of(highest));
    std::vector<int64_t> payload(Prices::NUM_BINS + 1);
    int64_t left = offers.size;
    for (int64_t row = 0; row < offers.num_rows; ++row) {
        const double weight = (double)offers.weights[row];
        const double* errors = offers.of(row);
        double limit = weight * (errors[0] - errors[1]) * rates[1];
        if (offers.must[row] > 0) left -= grown[1], limit = highest;
        else if (limit > 0.0) payload[prices.bin(price_of(limit))] += grown[1];
        for (int choice = 2; choice < NUM_CHOICES; ++choice) {
            limit = std::min(limit, weight * errors[1] * rates[choice]);
            if (!(limit > 0.0)) break;
            payload[prices.bin(price_of(limit))] += grown[choice];
        }
    }
    for (uint32_t bin = 0; bin < Prices::NUM_BINS; ++bin)
        if ((left -= payload[bin]) < 0) return prices.least_of(bin);
    return 0;
}

// Why no step below this price is looked at. Of each row the errors are known up to some choice; the others are taken
// to be infinite. At a price, follow the steps along what is known of a row, as add_steps does, to the choice that it
// reaches. With all errors known the row reaches that choice too, or one beyond what is known: a step goes elsewhere
// only to a choice that gains as much a byte or more. Let the rows that reach choices, but for the FILL - 1 with the
// most bytes, take more than the size. choose_rows takes the longest prefix of all steps that fits, and looks at FILL
// steps more. Were one of these below the price, then fewer than FILL steps of the price or more would lie behind the
// prefix, so all rows but FILL - 1 would have taken theirs in it: it would not fit.
uint32_t least_price(const Offers& offers) {
    Account account{offers.num_rows, offers.size, {}};
    for (int choice = 0; choice < NUM_CHOICES; ++choice)
        account.costs[choice] = row_bytes(offers.width, CHOICES[choice]);
    std::array<int64_t, NUM_CHOICES> reached{};
    std::vector<Step> steps;
    uint32_t highest = 0;
    for (int64_t row = 0; row < offers.num_rows; ++row) {
        const int first = offers.must[row] > 0;
        reached[first] += 1;
        add_steps(offers.of(row), (double)offers.weights[row], (uint32_t)row, first, account, 0, steps);
    }
    // What is forced goes at 1 bit as far as it fits, and if not all does, nothing else.
    if (!account.take(reached[1], reached[1] * account.costs[1]))
        return price_of(std::numeric_limits<double>::infinity());
    for (const Step& s : steps) highest = std::max(highest, s.key);
    const Prices prices(highest);
    std::vector<std::array<int32_t, NUM_CHOICES>> changes(Prices::NUM_BINS + 1);
    for (const Step& s : steps) {
        auto& change = changes[prices.bin(s.key)];
        --change[s.before], ++change[s.after];
    }
    for (uint32_t bin = 0; bin < Prices::NUM_BINS; ++bin) {
        int64_t payload = 0, spared = FILL - 1;
        for (int choice = NUM_CHOICES - 1; choice >= 1; --choice) {
            reached[choice] += changes[bin][choice];
            const int64_t less = std::min(spared, reached[choice]);
            payload += (reached[choice] - less) * account.costs[choice], spared -= less;
        }
        if (payload > offers.size) return prices.least_of(bin);
    }
    return 0;
}

void choose_rows(const Offers& offers, uint32_t least, uint8_t* bits) {
    const int64_t num_rows = offers.num_rows;
    Account account{num_rows, offers.size, {}};
    for (int choice = 0; choice < NUM_CHOICES; ++choice)
        account.costs[choice] = row_bytes(offers.width, CHOICES[choice]);
    memset(bits, 0, num_rows);
    std::vector<int64_t> forced;
    for (int64_t row = 0; row < num_rows; ++row)
        if (offers.must[row] > 0) forced.push_back(row);
    const int64_t num_forced = (int64_t)forced.size();
    if (!account.take(num_forced, num_forced * account.costs[1])) {
        choose_forced(offers, forced, account, bits);
    } else {
        for (int64_t row : forced) bits[row] = 1;
        std::vector<Step> steps;
        for (int64_t row = 0; row < num_rows; ++row)
            add_steps(offers.of(row), (double)offers.weights[row], (uint32_t)row, bits[row], account, least, steps);
        const Prefix prefix = take_prefix(steps, account);
        int64_t equals = prefix.equals;
        for (const Step& s : steps)
            if (s.key > prefix.key || (s.key == prefix.key && --equals >= 0)) bits[s.row] = s.after;
        fill(steps, prefix, account, bits);
    }
    for (int64_t row = 0; row < num_rows; ++row) bits[row] = CHOICES[bits[row]];
}

void write_sent(const uint8_t* bits, int64_t num_rows, uint8_t* out) {
    std::vector<int64_t> sent;
    for (int64_t row = 0; row < num_rows; ++row)
        if (bits[row]) sent.push_back(row);
    const int64_t num_sent = (int64_t)sent.size();
    memset(out, 0, sent_bytes(num_rows, num_sent));
    if (num_sent == 0) return;
    uint8_t* widths = out + sent_bytes(num_rows, num_sent) - bits_to_bytes(2 * num_sent);
    if (bits_to_bytes(num_rows) <= COUNT_BYTES + position_bytes(num_rows, num_sent)) {
        out[0] = BITMAP;
        for (int64_t row : sent) out[1 + row / 8] |= (uint8_t)(1u << row % 8);
    } else {
        out[0] = POSITIONS;
        for (int i = 0; i < COUNT_BYTES; ++i) out[1 + i] = (uint8_t)(num_sent >> 8 * i);
        write_positions(sent, num_rows, out + 1 + COUNT_BYTES);
    }
    for (int64_t i = 0; i < num_sent; ++i) {
        const uint8_t own = bits[sent[i]];
        widths[i / 4] |= (uint8_t)(((own > 1) + (own > 2) + (own > 4)) << 2 * (i % 4));
    }
}

int64_t read_sent(const uint8_t* data, int64_t length, int64_t num_rows, uint8_t* bits) {
    memset(bits, 0, num_rows);
    if (length < 1) return -1;
    if (data[0] == NOTHING) return 1;
    std::vector<int64_t> sent;
    int64_t begin;
    if (data[0] == BITMAP) {
        begin = 1 + bits_to_bytes(num_rows);
        if (begin > length) return -1;
        for (int64_t byte = 0; byte < begin - 1; ++byte)
            for (uint32_t marks = data[1 + byte]; marks; marks &= marks - 1) {
                const int64_t row = byte * 8 + __builtin_ctz(marks);
                if (row >= num_rows) return -1;
                sent.push_back(row);
            }
    } else if (data[0] == POSITIONS && length > COUNT_BYTES) {
        int64_t num_sent = 0;
        for (int i = 0; i < COUNT_BYTES; ++i) num_sent |= (int64_t)data[1 + i] << 8 * i;
        if (num_sent < 1 || num_sent > num_rows) return -1;
        begin = 1 + COUNT_BYTES + position_bytes(num_rows, num_sent);
        if (begin > length || !read_positions(data + 1 + COUNT_BYTES, num_rows, num_sent, sent)) return -1;
    } else {
        return -1;
    }
    const int64_t num_sent = (int64_t)sent.size(), end = begin + bits_to_bytes(2 * num_sent);
    if (end > length) return -1;
    for (int64_t i = 0; i < num_sent; ++i) bits[sent[i]] = (uint8_t)(1u << (data[begin + i / 4] >> 2 * (i % 4) & 3));
    return end;
}

}  // namespace thinwire
