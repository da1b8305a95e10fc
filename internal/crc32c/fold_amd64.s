#include "textflag.h"

// Z0 to Z3 hold 256 bytes of the message, Z4 and Z5 what they are multiplied by.

// FOLD makes of reg, moved on by the distance of k, and of 64 bytes at mem their sum.
#define FOLD(k, reg, tmp, mem) \
	VPCLMULQDQ $0x00, k, reg, tmp; \
	VPCLMULQDQ $0x11, k, reg, reg; \
	VPTERNLOGQ $0x96, mem, tmp, reg

// func fold(crc uint32, p []byte) uint32
TEXT ·fold(SB), NOSPLIT, $0-36
	MOVL crc+0(FP), AX
	MOVQ p_base+8(FP), SI
	MOVQ p_len+16(FP), CX

	// The state is added to the first four bytes.
	VMOVD     AX, X4
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VPXORQ    Z4, Z0, Z0
	ADDQ      $256, SI
	SUBQ      $256, CX

	VBROADCASTI32X4 ·over2048(SB), Z4

loop256:
	CMPQ CX, $256
	JB   join
	FOLD(Z4, Z0, Z6, (SI))
	FOLD(Z4, Z1, Z7, 64(SI))
	FOLD(Z4, Z2, Z8, 128(SI))
	FOLD(Z4, Z3, Z9, 192(SI))
	ADDQ $256, SI
	SUBQ $256, CX
	JMP  loop256

join:
	VBROADCASTI32X4 ·over512(SB), Z5
	FOLD(Z5, Z0, Z6, Z1)
	FOLD(Z5, Z0, Z6, Z2)
	FOLD(Z5, Z0, Z6, Z3)

loop64:
	CMPQ CX, $64
	JB   quarters
	FOLD(Z5, Z0, Z6, (SI))
	ADDQ $64, SI
	SUBQ $64, CX
	JMP  loop64

quarters:
	// The last one is moved by nothing, which multiplication by 0 is not.
	VEXTRACTI32X4 $3, Z0, X1
	VMOVDQU64     ·overQuarters(SB), Z5
	VPCLMULQDQ    $0x00, Z5, Z0, Z6
	VPCLMULQDQ    $0x11, Z5, Z0, Z0
	VPXORQ        Z6, Z0, Z0
	VEXTRACTI32X4 $1, Z0, X2
	VEXTRACTI32X4 $2, Z0, X3
	VPXOR         X1, X0, X0
	VPXOR         X2, X0, X0
	VPXOR         X3, X0, X0

	// What is left is a message of 16 bytes.
	VMOVQ   X0, R8
	VPEXTRQ $1, X0, R9
	XORL    AX, AX
	CRC32Q  R8, AX
	CRC32Q  R9, AX
	MOVL    AX, ret+32(FP)
	VZEROUPPER
	RET
