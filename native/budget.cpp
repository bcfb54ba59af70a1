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

constexpr int NUM_CHOICES = 5;
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

// The upper half of a positive double orders like it.
uint32_t key_of(double rate) {
    uint64_t bits;
    memcpy(&bits, &rate, 8);
    return (uint32_t)(bits >> 32);
}

void add_steps(const double* errors, double weight, uint32_t row, int now, const Account& account,
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
        steps.push_back({key_of(limit), row, (uint8_t)now, (uint8_t)target});
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
void choose_forced(const double* errors, const float* weights, const int64_t* must, std::vector<int64_t>& forced,
                   Account& account, uint8_t* choices) {
    std::vector<uint32_t> keys(account.num_rows);
    for (int64_t row : forced) {
        const double gain = errors[row * NUM_CHOICES] - errors[row * NUM_CHOICES + 1];
        keys[row] = key_of((gain > 0.0 ? gain : 0.0) * (double)weights[row] / (double)(account.costs[1] + SENT_COST));
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

void choose_rows(const double* errors, const float* weights, const int64_t* must, int64_t num_rows, int64_t width,
                 int64_t size, uint8_t* bits) {
    Account account{num_rows, size, {}};
    for (int choice = 0; choice < NUM_CHOICES; ++choice) account.costs[choice] = row_bytes(width, CHOICES[choice]);
    memset(bits, 0, num_rows);
    std::vector<int64_t> forced;
    for (int64_t row = 0; row < num_rows; ++row)
        if (must[row] > 0) forced.push_back(row);
    const int64_t num_forced = (int64_t)forced.size();
    if (!account.take(num_forced, num_forced * account.costs[1])) {
        choose_forced(errors, weights, must, forced, account, bits);
    } else {
        for (int64_t row : forced) bits[row] = 1;
        std::vector<Step> steps;
        steps.reserve(num_rows * 3);
        for (int64_t row = 0; row < num_rows; ++row)
            add_steps(errors + row * NUM_CHOICES, (double)weights[row], (uint32_t)row, bits[row], account, steps);
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
