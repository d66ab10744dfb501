// Package seal keeps what goes through other hands, or lies on a disk, from being read and changed: AES-256-GCM under a key of its own for each purpose.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
)

// Seal gives b so that only Open with the same key, purpose and beside gives it back.
// beside is authenticated, and not in the result.
func Seal(key [32]byte, purpose string, b, beside []byte) []byte {
	c := box(key, purpose)
	out := make([]byte, c.NonceSize(), c.NonceSize()+len(b)+c.Overhead())
	rand.Read(out)
	return c.Seal(out, out, b, beside)
}

// Open gives what was sealed; ok is false for anything else.
func Open(key [32]byte, purpose string, sealed, beside []byte) (b []byte, ok bool) {
	c := box(key, purpose)
	n := c.NonceSize()
	if len(sealed) < n {
		return nil, false
	}
	b, err := c.Open(nil, sealed[:n], sealed[n:], beside)
	return b, err == nil
}

func box(key [32]byte, purpose string) cipher.AEAD {
	mac := hmac.New(sha256.New, key[:])
	mac.Write([]byte(purpose))
	block, err := aes.NewCipher(mac.Sum(nil))
	if err != nil {
		panic(err) // a key of 32 bytes
	}
	c, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // a cipher of 16 bytes
	}
	return c
}
